// The bans in force, the last ones made. A click on one opens it, to be lifted.

import {disableUnlessAllowed, lift, Result} from "./acts.js";
import {ago, arrange, at, button, date, link, make, whole} from "./dom.js";
import {openDialog} from "./dialog.js";

const HEADS = ["Domain", "Entries", "Ends", "Made by", "Why"];
let rows = new Map();

function where(ban) { return ban.domain === "*" ? "every domain" : ban.domain; }

function open(ban) {
  const result = new Result(), lifting = button("Lift the ban", () => result.of(() => lift(ban.domain, ban.named)));
  disableUnlessAllowed(result, [lifting]);
  const until = ban.until === null ? "for ever" : `until ${date(ban.until)}`;
  openDialog([ban.entries, make("span", "soft", ` in ${where(ban)}`)],
    [make("p", "", `Banned ${until} by ${ban.who}, because: ${ban.why}`), make("p", "tools", lifting), result.line]);
}

function makeRow(ban) {
  const entries = ban.named ? link(ban.entries) : ban.entries;
  if (ban.named) entries.addEventListener("click", () => open(ban));
  const row = make("tr", "", make("td", "mono", where(ban)), make("td", "mono", entries), make("td", ""), make("td", "", ban.who), make("td", "", ban.why));
  HEADS.forEach((head, index) => { row.cells[index].dataset.head = head; });
  return row;
}

at("bans-heads").append(...HEADS.map(head => make("th", "", head)));

export function show({bans, now}) {
  at("bans").hidden = at("to-bans").hidden = !bans.newest.length;
  at("bans-count").textContent = bans.total > bans.newest.length
    ? `the last ${whole(bans.newest.length)} made of ${whole(bans.total)}; ratelimit bans lists all` : `${whole(bans.total)} in force`;
  rows = new Map(bans.newest.map(ban => {
    const key = JSON.stringify(ban), row = rows.get(key) || makeRow(ban);
    row.cells[2].textContent = ban.until === null ? "never" : `in ${ago(ban.until - now)} (${date(ban.until)})`;
    return [key, row];
  }));
  arrange(at("bans-rows"), [...rows.values()]);
}
