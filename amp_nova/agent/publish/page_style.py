"""The style sheet of the agent's page: light and dark, from a phone to a wide screen.

The colours of causes are those of Okabe and Ito, which colour-blind people can tell apart; the page
names each cause beside its colour.
"""

STYLE = """
:root {
  color-scheme: light dark;
  --page: #f6f7f9; --card: #fff; --text: #1b1f24; --quiet: #5a6572; --rule: #dde2e8;
  --delivered: #8593a3; --link: #0072b2; --good: #1a7f45; --bad: #b3261e;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14171b; --card: #1d2127; --text: #e7eaee; --quiet: #9aa6b4; --rule: #333a43;
    --delivered: #8593a3; --link: #6db1ff; --good: #56c98a; --bad: #ff8a80;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; max-width: 90rem; padding: 1rem clamp(.75rem, 2vw, 2rem) 3rem;
  background: var(--page); color: var(--text);
  font: 15px/1.45 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
  font-variant-numeric: tabular-nums; overflow-wrap: anywhere;
}
h1 { font-size: 1.3rem; margin: 0 0 .6rem; }
h2 { font-size: 1.05rem; margin: 1.6rem 0 .5rem; }
p { margin: .2rem 0; }
ul { margin: .2rem 0 0; padding-left: 1.2rem; }
.quiet, th { color: var(--quiet); font-weight: 400; }
.bad { color: var(--bad); }
.banner, .card {
  background: var(--card); border: 1px solid var(--rule); border-radius: 6px; padding: .6rem .8rem;
  min-width: 0;
}
.banner { color: inherit; border-left: .5rem solid var(--bad); }
.banner.good { border-left-color: var(--good); }
.banner > b { font-size: 1.15rem; color: var(--bad); }
.banner.good > b { color: var(--good); }
.tiles, .pcpus { display: grid; gap: .5rem; }
.tiles { grid-template-columns: repeat(auto-fit, minmax(10rem, 1fr)); margin-top: .6rem; }
.tiles b { display: block; font-size: 1.4rem; }
.pcpus { grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); font-size: .8rem; }
svg { display: block; width: 100%; height: 2rem; shape-rendering: crispEdges; }
section > svg { height: 8rem; border: solid var(--rule); border-width: 1px 0; }
path { fill: var(--cause); vector-effect: non-scaling-stroke; }
path.delivered { fill: none; stroke: var(--delivered); stroke-width: 2.5; }
path.booked { fill: none; stroke: var(--text); stroke-width: 1.5; stroke-dasharray: 5 4; }
.throttle { --cause: #e69f00; } .contention { --cause: #d55e00; } .core_type { --cause: #009e73; }
.frequency { --cause: #f0e442; } .smt { --cause: #56b4e9; }
.none { --cause: var(--rule); }
.key { display: flex; flex-wrap: wrap; gap: .1rem 1rem; font-size: .85rem; }
i { display: inline-block; width: 1.1em; height: .8em; margin-right: .35em; }
i { background: var(--cause); }
i.delivered { height: .2em; margin-bottom: .25em; background: var(--delivered); }
i.booked { height: 0; margin-bottom: .3em; border-top: 2px dashed var(--text); }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th { text-align: left; }
td, th { padding: .3rem .8rem .3rem 0; vertical-align: top; border-top: 1px solid var(--rule); }
td:nth-child(2) { width: 18rem; }
footer { margin-top: 1.5rem; font-size: .85rem; }
a { color: var(--link); }
@media (max-width: 45rem) {
  table, tbody, tr, td, td:nth-child(2) { display: block; width: auto; }
  thead { display: none; }
  td { border: 0; padding: .05rem 0; }
  td:nth-child(3)::before { content: "Delivered: "; }
  td:nth-child(4):not(:empty)::before { content: "Not delivered: "; }
  tr { border-top: 1px solid var(--rule); padding: .5rem 0; }
}
"""
