// What happened to the service: reloads, outages, bans, acts. It is asked for while the section is open and seen.

import {ago, at, date, get, isSeen, make} from "./dom.js";

const HEADS = ["When", "Lasted", "What", "Who"];
const WORDS = {reload: "Reload", outage: "Outage", ban: "Ban", worker: "Worker", act: "Act", rule: "Rule", drain: "Drain"};
let key = "", last = null;

function lasted({from, until}, now) {
  if (until === null) return `lasts, ${ago(now - from)}`;
  return until > from ? ago(until - from) : "";
}

function makeRow(event) {
  const details = event.details.length ? [make("ul", "plain", ...event.details.map(one => make("li", "", one)))] : [];
  const cells = [make("td", "wide", date(event.from)), make("td", event.until === null && event.kind !== "ban" ? "wide bad" : "wide"),
    make("td", "", make("span", "chip", WORDS[event.kind] || event.kind), event.what, ...details), make("td", "", event.who)];
  cells.forEach((cell, index) => { cell.dataset.head = HEADS[index]; });
  return make("tr", "", ...cells);
}

function fill(events, now) {
  const found = JSON.stringify(events), body = at("past-rows");
  if (found !== key) body.replaceChildren(...events.map(makeRow));
  key = found;
  events.forEach((event, index) => { body.rows[index].cells[1].textContent = lasted(event, now); });
}

export async function show(status) {
  last = status;
  if (!at("past").open || !isSeen(at("past"))) return;
  try {
    fill((await get("/status/past")).events, status.now);
    at("past-problem").textContent = "";
  } catch (error) {
    at("past-problem").textContent = error.message;
  }
}

at("past").addEventListener("toggle", () => { if (last) show(last); });
