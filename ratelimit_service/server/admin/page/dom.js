// What all sections of the page are made of: elements, numbers and times in words, and requests to the service.

const REQUEST_MILLISECONDS = 10000, CHANGE_MILLISECONDS = 300000;

export const at = id => document.getElementById(id);
export const whole = number => number.toLocaleString("en");

// Of large numbers the first digits: a column is as wide as they are.
export function short(number) {
  return number < 1e6 ? whole(number) : number.toLocaleString("en", {notation: "compact", minimumFractionDigits: 1, maximumFractionDigits: 2});
}

// What may come of a request, with its words, as charts have it from the bottom up: what passed, then what did not.
export const OUTCOMES = [["allowed", "Allowed"], ["unlimited", "Not limited"], ["policy_allowed", "Allowed by policy"],
  ["shadow", "Would have been refused"], ["refused", "Refused"], ["policy_refused", "Refused by policy"], ["failed", "Failed"]];

// Those that are a refusal, and those of which the answer was OK because of a limit, a rule, or the policy.
export const REFUSED = ["refused", "policy_refused"], ALLOWED = ["allowed", "shadow", "policy_allowed"];

// Text of rules and requests is set as text only, so it is never markup.
export function make(name, className, ...inside) {
  const element = document.createElement(name);
  if (className) element.className = className;
  element.append(...inside);
  return element;
}

export function ago(seconds) {
  if (seconds < 90) return Math.max(0, Math.round(seconds)) + " s";
  if (seconds < 5400) return Math.round(seconds / 60) + " min";
  if (seconds < 172800) return Math.round(seconds / 3600) + " h";
  return Math.round(seconds / 86400) + " days";
}

export function rate(number) {
  if (number === undefined) return "–";
  return number === 0 ? "0" : number < 10 ? number.toFixed(1) : whole(Math.round(number));
}

// A time as the reader's clock has it, and by UTC, which logs and other people's screens have.
function beside(moment, local, parts) {
  if (moment.getTimezoneOffset() === 0) return `${local} UTC`;
  const day = moment.getUTCDate() === moment.getDate() ? "" : moment.toISOString().slice(0, 11).replace("T", " ");
  return `${local} (${day}${moment.toISOString().slice(11, parts)} UTC)`;
}

export function clock(seconds) {
  const moment = new Date(seconds * 1000);
  return beside(moment, moment.toLocaleTimeString([], {hour: "2-digit", minute: "2-digit"}), 16);
}

export function date(seconds) {
  const moment = new Date(seconds * 1000);
  return beside(moment, moment.toLocaleString(), 19);
}

// A name that may be broken between its parts, and is short enough to stay whole otherwise.
export function breakable(name) {
  return name.split(/(?<=[,(/:])/).flatMap((part, index) => index ? [make("wbr", ""), part] : [part]);
}

export function pathWords(path) {
  return path.flatMap((level, index) => [...(index ? [make("span", "then", "›"), make("wbr", "")] : []), ...breakable(level)]);
}

export function pathCell(path) {
  return make("td", "mono", ...pathWords(path));
}

// Pairs of a name and its words; without those that have none.
export function facts(pairs) {
  const found = pairs.filter(([, words]) => words);
  return make("dl", "facts", ...found.flatMap(([name, words]) => [make("dt", "", name), make("dd", "", words)]));
}

export function numberCell(number, className = "") {
  return make("td", className ? `number ${className}` : "number", whole(number));
}

// A screen reader says a live text again when it is set anew, also to the same words.
export function setText(element, words) {
  if (element.textContent !== words) element.textContent = words;
}

// A button that looks like a link: it opens more of what it names.
export function link(...inside) {
  const found = make("button", "link", ...inside);
  found.type = "button";
  return found;
}

export function button(words, act) {
  const found = make("button", "", words);
  found.type = "button";
  found.addEventListener("click", act);
  return found;
}

// The rows of a table in this order. Those that were there stay, so that what has the focus keeps it.
export function arrange(body, wanted) {
  const focused = document.activeElement;
  wanted.forEach((row, index) => { if (body.children[index] !== row) body.insertBefore(row, body.children[index] || null); });
  while (body.children.length > wanted.length) body.lastChild.remove();
  if (focused !== document.activeElement && body.contains(focused)) focused.focus({preventScroll: true});
}

// A section with a table of numbers, which is there while it has rows. It stays, so that what has the focus keeps it.
export class Table {
  constructor(title, meaning, heads) {
    this.body = make("tbody", "");
    this.section = make("section", "", make("h2", "", title, make("span", "soft", meaning)), make("div", "frame", make("table", "",
      make("thead", "", make("tr", "", ...heads.map((text, index) => make("th", index ? "number" : "", text)))), this.body)));
  }

  fill(rows) {
    this.body.replaceChildren(...rows);
    this.section.hidden = !rows.length;
  }
}

// Reads a share of calls off cumulative buckets.
export function quantile(buckets, total, share) {
  const found = buckets.find(([, calls]) => calls >= total * share);
  if (!total) return "–";
  return found ? "≤ " + duration(found[0]) : "> 10 s";
}

export function duration(seconds) {
  const ms = seconds * 1000;
  return ms < 1 ? `${Math.round(ms * 1000)} µs` : ms < 1000 ? `${ms} ms` : `${seconds} s`;
}

// Of numbers of each minute their sums, minute by minute.
export function sumOf(rows) {
  return rows.length ? rows[0].map((_, minute) => rows.reduce((sum, row) => sum + row[minute], 0)) : [];
}

// Elements of a drawing.
export function draw(name, attributes, ...inside) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...inside);
  return element;
}

// A frame that scrolls can be scrolled by the keyboard; one that does not is not a tab stop.
export function focusFrames() {
  for (const frame of document.querySelectorAll(".frame")) {
    if (frame.scrollHeight > frame.clientHeight + 1 || frame.scrollWidth > frame.clientWidth + 1) frame.tabIndex = 0;
    else frame.removeAttribute("tabindex");
  }
}

// Whether a part of it is on the screen: what only then is fetched costs nothing otherwise.
export function isSeen(element) {
  const {top, bottom} = element.getBoundingClientRect();
  return bottom > 0 && top < innerHeight;
}

// The link that a service prints at its start has its token behind the #, which a browser sends nobody. It is kept for this
// tab, and taken out of the address.
const LINKED = "#token=", KEPT = "token";
if (location.hash.startsWith(LINKED)) {
  sessionStorage.setItem(KEPT, location.hash.slice(LINKED.length));
  history.replaceState(null, "", location.pathname);
}

// An error has the service's own words: a line, or a problem with all that is wrong.
async function wordsOf(answer, path) {
  const text = (await answer.text()).trim();
  if (!answer.headers.get("Content-Type")?.startsWith("application/problem+json")) return text || `${path} answered ${answer.status}`;
  const {detail, errors = []} = JSON.parse(text);
  return [detail, ...errors.map(one => `${one.file}${one.pointer || (one.line ? `:${one.line}:${one.column}` : "")}: ${one.message}`)].join("\n");
}

// The answer to a request, which is a good one.
export async function fetched(path, {headers: more = {}, ...options} = {}) {
  const token = sessionStorage.getItem(KEPT), headers = {...(token ? {Authorization: `Bearer ${token}`} : {}), ...more};
  // With the origin: a path alone would take the credentials of the page's address, with which fetch refuses it.
  const answer = await fetch(location.origin + path, {signal: AbortSignal.timeout(REQUEST_MILLISECONDS), headers, ...options});
  if (answer.status === 401 && token) { // that of a service that has been replaced; without it the browser asks its user
    sessionStorage.removeItem(KEPT);
    return fetched(path, {headers: more, ...options});
  }
  if (!answer.ok) throw new Error(await wordsOf(answer, path));
  return answer;
}

async function ask(path, options) {
  return (await fetched(path, options)).json();
}

// With parameters for the path, if any.
export function get(path, parameters = {}) {
  const query = new URLSearchParams(parameters).toString();
  return ask(query ? `${path}?${query}` : path, {});
}

// Asks for a change, or for what needs a body. Meanwhile the browser may ask its user for the token.
export function send(path, body, method = "POST") {
  return ask(path, {method, body: JSON.stringify(body), signal: AbortSignal.timeout(CHANGE_MILLISECONDS)});
}
