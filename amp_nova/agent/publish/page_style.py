"""The style sheet of the agent's page: light and dark, from a phone to a wide screen."""

STYLE = """
:root {
  color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --text: #1b1f24; --quiet: #5a6572; --rule: #dde2e8;
  --booked: #5a6572; --delivered: #0b5fc5; --free: #e9edf2; --good: #1a7f45; --bad: #b3261e;
  --throttle: #c2410c; --contention: #b3261e; --core_type: #7c4dbc; --frequency: #0f766e;
  --smt: #946200;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14171b; --card: #1d2127; --text: #e7eaee; --quiet: #9aa6b4; --rule: #333a43;
    --booked: #aab4c0; --delivered: #6db1ff; --free: #2b313a; --good: #56c98a; --bad: #ff8a80;
    --throttle: #ff9b5e; --contention: #ff8a80; --core_type: #c3a2f5; --frequency: #4fd1c5;
    --smt: #e3b341;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; max-width: 110rem; padding: 1rem clamp(.75rem, 2vw, 2rem) 3rem;
  background: var(--page); color: var(--text);
  font: 15px/1.45 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
  font-variant-numeric: tabular-nums;
}
header { display: flex; flex-wrap: wrap; align-items: baseline; gap: .25rem 1rem; }
h1 { font-size: 1.4rem; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.05rem; margin: 2rem 0 .6rem; }
h3 { font-size: .95rem; margin: 0; overflow-wrap: anywhere; }
p { margin: .2rem 0; }
.quiet, .x, .y, th { color: var(--quiet); font-weight: 400; }
.good { color: var(--good); } .bad { color: var(--bad); }
.verdict { font-weight: 600; font-size: 1.05rem; }
.card {
  background: var(--card); border: 1px solid var(--rule); border-radius: 8px; padding: .7rem .8rem;
  min-width: 0;
}
.tiles, .cards, .pcpus { display: grid; gap: .6rem; }
.tiles { grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); margin-top: 1rem; }
.tiles b { display: block; font-size: 1.45rem; font-weight: 600; }
.tiles small { font-size: .9rem; font-weight: 400; color: var(--quiet); }
.cards { grid-template-columns: repeat(auto-fill, minmax(min(20rem, 100%), 1fr)); }
.card.bad { color: inherit; border-color: var(--bad); }
.pair { display: flex; justify-content: space-between; gap: .75rem; flex-wrap: wrap; }
.chart {
  margin: .5rem 0 0; display: grid; grid-template-columns: max-content 1fr; column-gap: .5rem;
  font-size: .75rem;
}
.chart svg { width: 100%; height: 6rem; display: block; overflow: visible; }
.wide .chart svg { height: 9rem; }
.y { display: flex; flex-direction: column; justify-content: space-between; text-align: right; }
.y span { line-height: 1; }
.x { grid-column: 2; display: flex; justify-content: space-between; }
path { fill: none; vector-effect: non-scaling-stroke; stroke-width: 2; stroke-linejoin: round; }
.grid { stroke: var(--rule); vector-effect: non-scaling-stroke; }
.delivered { stroke: var(--delivered); }
.booked { stroke: var(--booked); stroke-dasharray: 5 4; stroke-width: 1.5; }
polygon.none { fill: none; }
.short { fill: var(--bad); opacity: .45; }
.throttle { fill: var(--throttle); } .contention { fill: var(--contention); }
.core_type { fill: var(--core_type); } .frequency { fill: var(--frequency); }
.smt { fill: var(--smt); }
.key { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; font-size: .85rem; }
.key svg { width: 1.5rem; height: .7rem; margin-right: .4rem; vertical-align: -.05rem; }
.pcpus { grid-template-columns: repeat(auto-fill, minmax(8.5rem, 1fr)); gap: .4rem; }
.pcpu {
  background: var(--card); border: 1px solid var(--rule); border-radius: 6px;
  padding: .3rem .45rem .4rem; font-size: .8rem; min-width: 0;
}
.pcpu ul { list-style: none; margin: .15rem 0 0; padding: 0; }
.pcpu li { display: flex; justify-content: space-between; gap: .4rem; }
.pcpu li span:first-child { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.bar {
  display: flex; height: .35rem; border-radius: 2px; background: var(--free); overflow: hidden;
}
.bar i { background: var(--delivered); border-right: 1px solid var(--card); }
.type { margin: .9rem 0 .35rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .85rem; }
th { text-align: left; }
td, th {
  padding: .25rem .8rem .25rem 0; vertical-align: top; border-bottom: 1px solid var(--rule);
}
td { overflow-wrap: anywhere; }
td.n, th.n { text-align: right; white-space: nowrap; }
summary { cursor: pointer; padding: .4rem 0; }
footer { margin-top: 2rem; font-size: .85rem; }
a { color: var(--delivered); }
@media (max-width: 40rem) {
  table.changes, .changes tbody, .changes tr, .changes td { display: block; }
  .changes thead { display: none; }
  .changes td { border: 0; padding: 0; }
  .changes tr { border-bottom: 1px solid var(--rule); padding: .4rem 0; }
}
"""
