// Some of the last refused requests, each with why. They are asked for while the section is open and seen.

import {arrange, at, date, get, isSeen, link, make, pathWords, whole} from "./dom.js";
import {entriesInWords} from "./explanation.js";
import {openDescriptor} from "./descriptor.js";

const HEADS = ["When", "Domain", "Descriptor", "Why", "Rule", "Cost", "Stands for"], FIRST_NUMBER = 5;
let rows = new Map(), last = null;

function makeRow(one) {
  const named = one.entries.map(([key, value]) => ({key, value})), name = link(entriesInWords(named));
  name.addEventListener("click", () => openDescriptor({domain: one.domain, entries: named}));
  const row = make("tr", "", make("td", "", date(one.when)), make("td", "mono", one.domain), make("td", "mono", name), make("td", "", one.words),
    make("td", "mono", ...pathWords(one.rule), make("div", "soft", one.place.replace(`${last.reload.path}/`, ""))), make("td", "number", whole(one.cost)), make("td", "number", whole(one.stands_for)));
  HEADS.forEach((head, index) => { row.cells[index].dataset.head = head; });
  return row;
}

function fill({refusals}) {
  rows = new Map(refusals.map(one => {
    const key = JSON.stringify(one);
    return [key, rows.get(key) || makeRow(one)];
  }));
  arrange(at("refusals-rows"), [...rows.values()]);
  at("refusals-problem").textContent = refusals.length ? "" : "None was refused lately.";
}

export async function show(status) {
  last = status;
  if (!at("refusals").open || !isSeen(at("refusals"))) return;
  try {
    fill(await get("/status/refusals"));
  } catch (error) {
    at("refusals-problem").textContent = error.message;
  }
}

at("refusals-heads").append(...HEADS.map((head, index) => make("th", index < FIRST_NUMBER ? "" : "number", head)));
at("refusals").addEventListener("toggle", () => { if (last) show(last); });
