// A form that explains a request, and charges nothing.

import {at, link, make, send} from "./dom.js";
import {openDescriptor} from "./descriptor.js";
import {entriesInWords, explanation} from "./explanation.js";

const [form, domain, entries, result] = ["try-form", "try-domain", "try-entries", "try-result"].map(at);
const [requests, times, unit] = ["try-requests", "try-times", "try-unit"].map(at);
let edition = null;

// An entry a line, of which the value may have spaces and = too; an empty line begins another descriptor.
function descriptors(text) {
  return text.split(/\n\s*\n/).map(block => block.split("\n").map(line => line.trim()).filter(Boolean)).filter(lines => lines.length)
    .map(lines => ({entries: lines.map(line => {
      const [key, ...value] = line.split("=");
      if (!key || !value.length) throw new Error(`“${line}” is not of the form key=value`);
      return {key, value: value.join("=")};
    })}));
}

async function explain() {
  const found = descriptors(entries.value);
  if (!found.length) throw new Error("Name at least one entry, such as user=ada");
  const limit = requests.value === "" ? {} : {limit: {requests_per_unit: Number(requests.value), unit: unit.value, unit_multiplier: Number(times.value)}};
  const asked = {domain: domain.value, descriptors: found.map(one => ({...one, ...limit}))};
  return explanation(await send("/explain", asked), ({entries: named}) => {
    const button = link(entriesInWords(named));
    button.addEventListener("click", () => openDescriptor({domain: asked.domain, entries: named}));
    return button;
  });
}

form.addEventListener("submit", async event => {
  event.preventDefault();
  try {
    result.replaceChildren(...await explain());
  } catch (error) {
    result.replaceChildren(make("p", "bad", error.message));
  }
});

// The domains to choose from are those of the rules.
export function show(status) {
  if (status.edition === edition) return;
  edition = status.edition;
  const domains = [...new Set(status.rules.map(rule => rule.domain))].slice(0, 1000);
  at("domains").replaceChildren(...domains.map(name => { const option = make("option", ""); option.value = name; return option; }));
  if (!domain.value && domains.length === 1) domain.value = domains[0];
}
