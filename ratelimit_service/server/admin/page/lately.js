// The last sixty minutes: the requests in all and of the busiest domains, how long calls took, and what happened.

import {at, duration, OUTCOMES, sumOf} from "./dom.js";
import {Chart, lines, markKeys} from "./chart.js";

const MAX_CHARTS = 12;
const LATENCY = {shape: lines, inWords: seconds => seconds ? `≤ ${duration(seconds)}` : "–", together: numbers => Math.max(0, ...numbers), none: "no calls"};
const latency = new Chart([["p99", "99 % of calls, at most"], ["p50", "half of them"]], LATENCY);
let charts = new Map();

function total(columns) {
  return sumOf(Object.values(columns)).reduce((one, other) => one + other, 0);
}

export function together(domains) {
  const found = OUTCOMES.map(([name]) => [name, sumOf(domains.map(columns => columns[name]).filter(Boolean))]);
  return Object.fromEntries(found.filter(([, numbers]) => numbers.length));
}

export function show({history}) {
  const busy = Object.entries(history.domains).filter(([, columns]) => Object.keys(columns).length);
  const busiest = busy.sort((one, other) => total(other[1]) - total(one[1])).slice(0, MAX_CHARTS);
  const wanted = busy.length === 1 ? busy : [["", together(busy.map(([, columns]) => columns))], ...busiest];
  charts = new Map(wanted.map(([domain]) => [domain, charts.get(domain) || new Chart()]));
  for (const [domain, columns] of wanted) charts.get(domain).fill(nameOf(domain), columns, history);
  latency.fill("time of a call", history.latency, history);
  const [first, ...others] = [...charts.values()].map(chart => chart.figure), figures = [first, latency.figure, ...others], old = at("charts").children;
  if (figures.length !== old.length || figures.some((figure, index) => figure !== old[index])) at("charts").replaceChildren(...figures);
  const keys = markKeys(history), words = keys.map(key => key.textContent).join();
  if (at("marks").dataset.words !== words) at("marks").replaceChildren(...(keys.length ? ["Marks: ", ...keys] : []));
  at("marks").dataset.words = words;
  at("lately").hidden = false;
}

// `other` is a domain's name only if rules have it; what the service counts under it has several names.
function nameOf(domain) {
  return domain === "other" ? "other domains" : domain || "all domains";
}
