// A chart of sixty minutes: bars by outcome, and their numbers as a table.

import {clock, make, OUTCOMES, whole} from "./dom.js";

const WIDTH = 480, HEIGHT = 130, LEFT = 46, BOTTOM = 18, TOP = 8;

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

export function sumOf(rows) {
  return rows.length ? rows[0].map((_, minute) => rows.reduce((sum, row) => sum + row[minute], 0)) : [];
}

function bars(outcomes, columns, minutes, now) {
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
  for (const [outcome] of outcomes) {
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

function minuteRow(words, numbers) {
  return make("tr", "", make("td", "wide", words), ...numbers.map(number => make("td", "number", whole(number))));
}

// It stays and is filled anew, so that what is open or has the focus remains so.
export class Chart {
  constructor(outcomes = OUTCOMES) {
    this.outcomes = outcomes;
    this.svg = draw("svg", {viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img"});
    this.caption = make("figcaption", "");
    this.rows = make("tbody", "");
    const heads = ["Minute", ...outcomes.map(([, words]) => words)].map((text, index) => make("th", index ? "number" : "", text));
    const frame = make("div", "frame", make("table", "", make("thead", "", make("tr", "", ...heads)), this.rows));
    frame.tabIndex = 0;
    this.details = make("details", "", make("summary", "", "Numbers of each minute"), frame);
    this.details.addEventListener("toggle", () => this.fillRows());
    this.figure = make("figure", "chart", this.caption, this.svg, this.details);
  }

  // `history` says when its minutes were; `columns` has the numbers of each outcome that occurred.
  fill(title, columns, history) {
    Object.assign(this, {columns, history});
    const sums = this.outcomes.map(([name, words]) => [name, words, (columns[name] || []).reduce((sum, each) => sum + each, 0)])
      .filter(([, , sum]) => sum);
    this.caption.replaceChildren(make("strong", "mono", title),
      ...sums.map(([name, words, sum]) => make("span", "key " + name, `${words} ${whole(sum)}`)));
    this.svg.setAttribute("aria-label", `${title}, the last ${history.minutes} minutes: ` +
      (sums.map(([, words, sum]) => `${words} ${whole(sum)}`).join(", ") || "no requests"));
    this.svg.replaceChildren(...bars(this.outcomes, columns, history.minutes, history.now));
    this.details.hidden = !sums.length;
    this.fillRows();
  }

  fillRows() {
    if (!this.details.open || !this.history) return;
    const {columns, history: {minutes, now, running_seconds: running}} = this, begun = now - running;
    this.rows.replaceChildren(...Array.from({length: minutes}, (_, ago) => minuteRow(
      ago ? clock(begun - 60 * ago) : `${clock(begun)}, running`,
      this.outcomes.map(([name]) => (columns[name] || [])[minutes - 1 - ago] || 0))));
  }
}
