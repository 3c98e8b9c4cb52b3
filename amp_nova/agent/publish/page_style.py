# SPDX-License-Identifier: Apache-2.0
"""The style sheet of the agent's page.

For light and dark, phones and wide screens. The colours of causes are those of Okabe and Ito, which
colour-blind people can tell apart; the page names each cause beside its colour.
"""

STYLE = """:root {
  color-scheme: light dark;
  --page: light-dark(#f6f7f9, #14171b); --card: light-dark(#fff, #1d2127);
  --text: light-dark(#1b1f24, #e7eaee); --quiet: light-dark(#5a6572, #9aa6b4);
  --rule: light-dark(#dde2e8, #333a43); --delivered: #8593a3;
  --good: light-dark(#1a7f45, #56c98a); --bad: light-dark(#b3261e, #ff8a80);
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; max-width: 90rem; padding: 1rem clamp(.75rem, 2vw, 2rem) 3rem;
  background: var(--page); color: var(--text);
  font: 15px/1.45 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
  font-variant-numeric: tabular-nums; overflow-wrap: anywhere;
}
h1, h2 { font-size: 1.15rem; margin: 1.2rem 0 .5rem; }
p, ul { margin: .2rem 0; }
a { color: inherit; }
.quiet, th { color: var(--quiet); font-weight: 400; }
.bad { color: var(--bad); } .good { color: var(--good); }
.banner, .card {
  background: var(--card); border: 1px solid var(--rule); border-radius: 6px; padding: .6rem .8rem;
}
.banner { border-left: .5rem solid; }
.banner > b { font-size: 1.15rem; }
.banner ul { color: var(--text); }
.tiles, .pcpus { display: grid; gap: .5rem; margin: .6rem 0; }
.tiles { grid-template-columns: repeat(auto-fit, minmax(10rem, 1fr)); }
.tiles b { display: block; font-size: 1.4rem; }
.pcpus { grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); font-size: .8rem; }
svg { display: block; width: 100%; height: 2rem; shape-rendering: crispEdges; }
path { fill: var(--cause); vector-effect: non-scaling-stroke; }
path.delivered { fill: none; stroke: var(--delivered); stroke-width: 2.5; }
path.booked { fill: none; stroke: var(--text); stroke-width: 1.5; stroke-dasharray: 5 4; }
.throttle { --cause: #e69f00; } .contention { --cause: #d55e00; } .core_type { --cause: #009e73; }
.frequency { --cause: #f0e442; } .smt { --cause: #56b4e9; } .none { --cause: var(--rule); }
.key { display: flex; flex-wrap: wrap; gap: .1rem 1rem; font-size: .85rem; }
i { display: inline-block; width: 1.1em; height: .8em; margin-right: .35em; }
i { background: var(--cause); }
i.delivered { height: .2em; margin-bottom: .25em; background: var(--delivered); }
i.booked { height: 0; margin-bottom: .3em; border-top: 2px dashed var(--text); }
table { border-collapse: collapse; width: 100%; font-size: .9rem; text-align: left; }
td, th { padding: .3rem .8rem .3rem 0; vertical-align: top; border-top: 1px solid var(--rule); }
td:nth-child(2) { width: 18rem; }
@media (max-width: 45rem) {
  table, tbody, tr, td, td:nth-child(2) { display: block; width: auto; }
  thead { display: none; }
  td { border: 0; padding: .05rem 0; }
  td:nth-child(3)::before { content: "Delivered: "; }
  td:nth-child(4):not(:empty)::before { content: "Not delivered: "; }
  tr { border-top: 1px solid var(--rule); padding: .5rem 0; }
}
"""
