// Requests as the rules met them: banned, by outcome, without a rule, with limits of their own.

import {ago, at, date, make, numberCell, OUTCOMES, pathCell, table, whole} from "./dom.js";

export function show(status) {
  const parts = [], bans = status.bans.newest;
  if (bans.length) parts.push(table("Bans", status.bans.total > bans.length
      ? `the last ${whole(bans.length)} made of ${whole(status.bans.total)}; ratelimit bans lists all` : `${whole(bans.length)} in force`,
    ["Domain", "Entries", "Ends", "Made by", "Why"], bans.map(one => make("tr", "",
      make("td", "mono", one.domain === "*" ? "every domain" : one.domain), make("td", "mono", one.entries),
      make("td", "wide", one.until === null ? "never" : `in ${ago(one.until - status.now)} (${date(one.until)})`),
      make("td", "", one.who), make("td", "", one.why))), ""));
  if (status.domains.length) parts.push(table("Requests", "by domain and outcome",
    ["Domain", ...OUTCOMES.map(([, words]) => words)], status.domains.map(one => make("tr", "", make("td", "mono", one.domain),
      ...OUTCOMES.map(([name]) => numberCell(one[name]))))));
  if (status.unmatched.length) parts.push(table("Descriptors that match no rule", "by their keys; they are not limited",
    ["Domain and keys", "Descriptors"], status.unmatched.map(one => make("tr", "", pathCell(one.path), numberCell(one.total)))));
  if (status.unknown_domains.length) parts.push(table("Domains without rules", "requests for them are not limited",
    ["Domain", "Requests"], status.unknown_domains.map(one => make("tr", "", pathCell(one.path), numberCell(one.total)))));
  if (status.overrides.length) parts.push(table("Limits sent with requests", "", ["Descriptor", "Hits", "Over"],
    status.overrides.map(one => make("tr", "", pathCell(one.path), numberCell(one.total), numberCell(one.over)))));
  at("requests").replaceChildren(...parts);
}
