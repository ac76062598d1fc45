// Requests as the rules met them: by outcome, without a rule, with limits of their own.

import {at, make, numberCell, OUTCOMES, pathCell, Table} from "./dom.js";

const requests = new Table("Requests", "by domain and outcome", ["Domain", ...OUTCOMES.map(([, words]) => words)]);
const unmatched = new Table("Descriptors that match no rule", "by their keys; they are not limited", ["Domain and keys", "Descriptors"]);
const unknown = new Table("Domains without rules", "requests for them are not limited", ["Domain", "Requests"]);
const overrides = new Table("Limits sent with requests", "", ["Descriptor", "Hits", "Over"]);

function row(one, ...numbers) {
  return make("tr", "", pathCell(one.path), ...numbers.map(number => numberCell(number)));
}

export function show(status) {
  requests.fill(status.domains.map(one => make("tr", "", make("td", "mono", one.domain), ...OUTCOMES.map(([name]) => numberCell(one[name])))));
  unmatched.fill(status.unmatched.map(one => row(one, one.total)));
  unknown.fill(status.unknown_domains.map(one => row(one, one.total)));
  overrides.fill(status.overrides.map(one => row(one, one.total, one.over)));
}

at("requests").append(...[requests, unmatched, unknown, overrides].map(each => each.section));
