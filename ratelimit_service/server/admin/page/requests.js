// Requests as the rules met them: by outcome, without a rule, with limits of their own.

import {at, make, numberCell, OUTCOMES, pathCell, table} from "./dom.js";

export function show(status) {
  const parts = [];
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
