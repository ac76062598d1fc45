// Charts of the last sixty minutes, by outcome.

import {at, clock, make, OUTCOMES, whole} from "./dom.js";

const WIDTH = 480, HEIGHT = 130, LEFT = 46, BOTTOM = 18, TOP = 8, MAX_CHARTS = 12;
let charts = new Map(), last = null;

function draw(name, attributes, ...inside) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...inside);
  return element;
}

function short(number) {
  return number.toLocaleString("en", {notation: "compact", maximumFractionDigits: 1});
}

// The least 1, 2 or 5 times a power of ten that is enough.
function roundUp(most) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, most)));
  return [1, 2, 5, 10].find(each => each * power >= most) * power;
}

function sumOf(rows) {
  return rows.length ? rows[0].map((_, minute) => rows.reduce((sum, row) => sum + row[minute], 0)) : [];
}

function bars(columns, minutes, now) {
  const high = roundUp(Math.max(1, ...sumOf(Object.values(columns)))), plot = HEIGHT - TOP - BOTTOM, step = (WIDTH - LEFT) / minutes;
  const parts = [];
  for (const value of high % 2 ? [0, high] : [0, high / 2, high]) {
    const y = TOP + plot * (1 - value / high);
    parts.push(draw("line", {x1: LEFT, x2: WIDTH, y1: y, y2: y}), draw("text", {x: LEFT - 6, y: y + 4, "text-anchor": "end"}, short(value)));
  }
  for (const [ago, anchor] of [[minutes, "start"], [minutes / 2, "middle"], [0, "end"]]) {
    parts.push(draw("text", {x: LEFT + (minutes - ago) * step, y: HEIGHT - 4, "text-anchor": anchor}, clock(now - 60 * ago)));
  }
  const stack = new Array(minutes).fill(0);
  for (const [outcome] of OUTCOMES) {
    let path = "";
    (columns[outcome] || []).forEach((number, minute) => {
      if (!number) return;
      const y = TOP + plot * (1 - (stack[minute] + number) / high), height = plot * number / high;
      path += `M${(LEFT + minute * step).toFixed(1)} ${y.toFixed(2)}h${(step - 1).toFixed(1)}v${height.toFixed(2)}h-${(step - 1).toFixed(1)}z`;
      stack[minute] += number;
    });
    if (path) parts.push(draw("path", {d: path, class: outcome}));
  }
  return parts;
}

function makeChart() {
  const chart = {svg: draw("svg", {viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img"}), caption: make("figcaption", ""),
    rows: make("tbody", ""), details: make("details", "")};
  const frame = make("div", "frame", make("table", "", make("thead", "", make("tr", "", ...["Minute", ...OUTCOMES.map(([, words]) => words)]
    .map((text, index) => make("th", index ? "number" : "", text)))), chart.rows));
  frame.tabIndex = 0;
  chart.details.append(make("summary", "", "Numbers of each minute"), frame);
  chart.details.addEventListener("toggle", () => { if (last) show(last); });
  chart.figure = make("figure", "chart", chart.caption, chart.svg, chart.details);
  return chart;
}

function fillChart(chart, title, columns, history) {
  const sums = OUTCOMES.map(([name, words]) => [name, words, (columns[name] || []).reduce((sum, each) => sum + each, 0)]).filter(([, , sum]) => sum);
  chart.caption.replaceChildren(make("strong", "mono", title), ...sums.map(([name, words, sum]) => make("span", "key " + name, `${words} ${whole(sum)}`)));
  chart.svg.setAttribute("aria-label", `${title}, the last ${history.minutes} minutes: ` +
    (sums.map(([, words, sum]) => `${words} ${whole(sum)}`).join(", ") || "no requests"));
  chart.svg.replaceChildren(...bars(columns, history.minutes, history.now));
  chart.details.hidden = !sums.length;
  const begun = history.now - history.running_seconds;
  if (chart.details.open) chart.rows.replaceChildren(...Array.from({length: history.minutes}, (_, ago) => make("tr", "",
    make("td", "wide", ago ? clock(begun - 60 * ago) : `${clock(begun)}, running`),
    ...OUTCOMES.map(([name]) => make("td", "number", whole((columns[name] || [])[history.minutes - 1 - ago] || 0))))));
}

// Figures stay and are filled anew, so that what is open or has the focus remains so.
export function show(status) {
  last = status;
  const {history} = status, all = Object.entries(history.domains), sum = columns => sumOf(Object.values(columns)).reduce((one, other) => one + other, 0);
  const busy = all.filter(([, columns]) => Object.keys(columns).length).sort((one, other) => sum(other[1]) - sum(one[1])).slice(0, MAX_CHARTS);
  const total = {};
  for (const [outcome] of OUTCOMES) {
    const rows = all.map(([, columns]) => columns[outcome]).filter(Boolean);
    if (rows.length) total[outcome] = sumOf(rows);
  }
  const kept = new Map();
  for (const [domain, columns] of busy.length === 1 ? busy : [["", total], ...busy]) {
    const chart = charts.get(domain) || makeChart();
    kept.set(domain, chart);
    fillChart(chart, domain || "all domains", columns, history);
  }
  charts = kept;
  const figures = [...kept.values()].map(chart => chart.figure), old = at("charts").children;
  if (figures.length !== old.length || figures.some((figure, index) => figure !== old[index])) at("charts").replaceChildren(...figures);
  at("lately").hidden = false;
}
