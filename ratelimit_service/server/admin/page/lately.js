// The requests of the last sixty minutes: in all, and of the busiest domains.

import {at, OUTCOMES} from "./dom.js";
import {Chart, sumOf} from "./chart.js";

const MAX_CHARTS = 12;
let charts = new Map();

function total(columns) {
  return sumOf(Object.values(columns)).reduce((one, other) => one + other, 0);
}

function together(domains) {
  const found = OUTCOMES.map(([name]) => [name, sumOf(domains.map(columns => columns[name]).filter(Boolean))]);
  return Object.fromEntries(found.filter(([, numbers]) => numbers.length));
}

export function show({history}) {
  const busy = Object.entries(history.domains).filter(([, columns]) => Object.keys(columns).length);
  const busiest = busy.sort((one, other) => total(other[1]) - total(one[1])).slice(0, MAX_CHARTS);
  const wanted = busy.length === 1 ? busy : [["", together(busy.map(([, columns]) => columns))], ...busiest];
  charts = new Map(wanted.map(([domain]) => [domain, charts.get(domain) || new Chart()]));
  for (const [domain, columns] of wanted) charts.get(domain).fill(domain || "all domains", columns, history);
  const figures = [...charts.values()].map(chart => chart.figure), old = at("charts").children;
  if (figures.length !== old.length || figures.some((figure, index) => figure !== old[index])) at("charts").replaceChildren(...figures);
  at("lately").hidden = false;
}
