// A chart of sixty minutes: bars by outcome or lines, marks of what happened meanwhile, and the numbers as a table.

import {clock, draw, duration, make, OUTCOMES, sumOf, whole} from "./dom.js";

const WIDTH = 480, HEIGHT = 130, LEFT = 46, BOTTOM = 18, TOP = 8, PLOT = HEIGHT - TOP - BOTTOM;
const MARKS = {reload: "Reload", outage: "Outage", ban: "Ban", worker: "Worker ended"};

// The least 1, 2 or 5 times a power of ten that is enough.
function roundUp(most) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, most)));
  return [1, 2, 5, 10].find(each => each * power >= most) * power;
}

// When the first of the minutes began.
function beginOf({now, running_seconds: running, minutes}) {
  return now - running - 60 * (minutes - 1);
}

function axes(history, values, words, yOf) {
  const {minutes, now} = history, parts = [];
  for (const value of values) {
    const y = yOf(value);
    parts.push(draw("line", {x1: LEFT, x2: WIDTH, y1: y, y2: y}), draw("text", {x: LEFT - 6, y: y + 4, "text-anchor": "end"}, words(value)));
  }
  for (const [share, anchor, seconds] of [[0, "start", beginOf(history)], [.5, "middle", beginOf(history) + 30 * minutes], [1, "end", now]]) {
    parts.push(draw("text", {x: LEFT + share * (WIDTH - LEFT), y: HEIGHT - 4, "text-anchor": anchor}, clock(seconds)));
  }
  return parts;
}

function words(number) {
  return number.toLocaleString("en", {notation: "compact", maximumFractionDigits: 1});
}

// Of stacked bars: what stands behind them, and they themselves.
export function bars(series, columns, history) {
  const {minutes} = history, high = roundUp(Math.max(1, ...sumOf(Object.values(columns)))), step = (WIDTH - LEFT) / minutes;
  const yOf = value => TOP + PLOT * (1 - value / high), parts = axes(history, high % 2 ? [0, high] : [0, high / 2, high], words, yOf);
  const stack = new Array(minutes).fill(0);
  for (const [name] of series) {
    let path = "";
    (columns[name] || []).forEach((number, minute) => {
      if (!number) return;
      path += `M${(LEFT + minute * step).toFixed(1)} ${yOf(stack[minute] + number).toFixed(2)}h${(step - 1).toFixed(1)}v${(PLOT * number / high).toFixed(2)}h-${(step - 1).toFixed(1)}z`;
      stack[minute] += number;
    });
    if (path) parts.push(draw("path", {d: path, class: name}));
  }
  return parts;
}

const QUICKEST = 5e-5, SLOWEST = 10;

// Of durations a line each, by their logarithms; a minute without calls has none.
export function lines(series, columns, history) {
  const step = (WIDTH - LEFT) / history.minutes, height = Math.log(SLOWEST / QUICKEST);
  const yOf = seconds => TOP + PLOT * (1 - Math.log(Math.max(seconds, QUICKEST) / QUICKEST) / height);
  const parts = axes(history, [1e-4, 1e-2, 1], duration, yOf);
  for (const [name] of series) {
    let path = "", drawn = false;
    (columns[name] || []).forEach((seconds, minute) => {
      if (seconds) path += `${drawn ? "L" : "M"}${(LEFT + minute * step).toFixed(1)} ${yOf(seconds).toFixed(1)}h${(step - 1).toFixed(1)}`;
      drawn = seconds > 0;
    });
    if (path) parts.push(draw("path", {d: path, class: `line ${name}`}));
  }
  return parts;
}

export function markWords([kind, from, until]) {
  return `${MARKS[kind]} ${clock(from)}${until === null ? ", lasts" : until - from >= 60 ? ` to ${clock(until)}` : ""}`;
}

// What happened: a stroke, and a ground as wide as it lasted.
function marks(history) {
  const {now, minutes} = history, begin = beginOf(history);
  const xOf = seconds => LEFT + Math.min(minutes, Math.max(0, (seconds - begin) / 60)) * (WIDTH - LEFT) / minutes;
  return history.marks.map(mark => {
    const [kind, from, until] = mark, x = xOf(from), lasts = kind === "outage" || (kind === "reload" && until !== from);
    const shape = {x: x.toFixed(1), y: 0, width: Math.max(1.5, lasts ? xOf(until ?? now) - x : 0).toFixed(1), height: TOP + PLOT};
    return draw("rect", {...shape, class: `mark ${kind}${lasts ? " lasted" : ""}`}, draw("title", {}, markWords(mark)));
  });
}

// The kinds of marks that there are.
export function markKeys(history) {
  const kinds = Object.keys(MARKS).filter(kind => history.marks.some(([one]) => one === kind));
  return kinds.map(kind => make("span", `key ${kind}`, MARKS[kind]));
}

function minuteRow(words, numbers, inWords) {
  return make("tr", "", make("td", "wide", words), ...numbers.map(number => make("td", "number", inWords(number))));
}

const SUM = {shape: bars, inWords: whole, together: numbers => numbers.reduce((sum, each) => sum + each, 0), none: "no requests"};

// It stays and is filled anew, so that what is open or has the focus remains so. `series` has the names of what is
// drawn, with words for them; `of` says how, how a number is written, and how those of all minutes are one.
export class Chart {
  constructor(series = OUTCOMES, of = SUM) {
    Object.assign(this, {series, of});
    this.svg = draw("svg", {viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img"});
    this.caption = make("figcaption", "");
    this.rows = make("tbody", "");
    const heads = ["Minute", ...series.map(([, words]) => words)].map((text, index) => make("th", index ? "number" : "", text));
    const frame = make("div", "frame", make("table", "", make("thead", "", make("tr", "", ...heads)), this.rows));
    this.details = make("details", "", make("summary", "", "Numbers of each minute"), frame);
    this.details.addEventListener("toggle", () => this.fillRows());
    this.figure = make("figure", "chart", this.caption, this.svg, this.details);
  }

  // `history` says when its minutes were, and what happened in them; `columns` has the numbers of what occurred.
  fill(title, columns, history) {
    Object.assign(this, {columns, history});
    const {together, inWords, none, shape} = this.of;
    const sums = this.series.map(([name, words]) => [name, words, together(columns[name] || [])]).filter(([, , sum]) => sum);
    this.caption.replaceChildren(make("strong", "mono", title),
      ...sums.map(([name, words, sum]) => make("span", "key " + name, `${words} ${inWords(sum)}`)));
    this.svg.setAttribute("aria-label", `${title}, the last ${history.minutes} minutes: ` +
      (sums.map(([, words, sum]) => `${words} ${inWords(sum)}`).join(", ") || none));
    this.svg.replaceChildren(...shape(this.series, columns, history), ...marks(history));
    this.details.hidden = !sums.length;
    this.fillRows();
  }

  fillRows() {
    if (!this.details.open || !this.history) return;
    const {columns, history: {minutes, now, running_seconds: running}, of: {inWords}} = this, begun = now - running;
    this.rows.replaceChildren(...Array.from({length: minutes}, (_, ago) => minuteRow(
      ago ? clock(begun - 60 * ago) : `${clock(begun)}, running`,
      this.series.map(([name]) => (columns[name] || [])[minutes - 1 - ago] || 0), inWords)));
  }
}
