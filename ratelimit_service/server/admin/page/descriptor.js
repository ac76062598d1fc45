// More of a descriptor, in the dialog: its counters now, and what an operator may do about it.

import {ban, disableUnlessAllowed, lift, reset, Result} from "./acts.js";
import {button, make, send, whole} from "./dom.js";
import {openDialog} from "./dialog.js";
import {banInWords, entriesInWords, explanation, stateInWords} from "./explanation.js";

function field(name, value) {
  const input = make("input", "");
  Object.assign(input, {name, value, required: true, maxLength: 200});
  return [make("label", "", name, " ", input), input];
}

class Descriptor {
  constructor({domain, entries, hits, refused}) {
    this.asked = {domain, entries};
    this.counts = hits === undefined ? "" : `${whole(hits)} hits lately, ${whole(refused)} of them refused.`;
    this.now = make("div", "");
    this.walk = make("div", "");
    this.result = new Result();
    this.ban = make("button", "", "Ban");
    this.reset = button("Reset its counters", () => this.act(() => reset(domain, entries)));
    this.unban = button("Lift the ban", () => this.act(() => lift(this.found.domain, this.found.entries)));
  }

  banForm() {
    const {domain, entries} = this.asked;
    const [long, length] = field("for", "1h"), [reason, why] = field("why", ""), form = make("form", "tools", this.ban, long, reason);
    length.size = 8;
    form.addEventListener("submit", event => {
      event.preventDefault();
      this.act(() => ban(domain, entries, length.value, why.value));
    });
    return form;
  }

  contents() {
    return [make("p", "soft", this.counts), this.now, this.banForm(),
      make("p", "tools", this.reset, this.unban), this.result.line,
      make("details", "", make("summary", "", "Why this rule"), this.walk)];
  }

  async refresh() {
    try {
      this.show(await send("/explain", {domain: this.asked.domain, descriptors: [{entries: this.asked.entries}]}));
    } catch (error) {
      this.now.replaceChildren(make("p", "bad", error.message));
    }
  }

  show(found) {
    const [one = {rules: [], outcome: found.problem}] = found.descriptors, problem = found.store.problem;
    this.found = one.ban;
    this.unban.hidden = !one.ban;
    const lines = one.rules.filter(rule => rule.state).map(rule => make("p", "", `${rule.limit}: `, make("strong", "", stateInWords(rule.state))));
    this.now.replaceChildren(...(lines.length ? lines : [make("p", "", one.outcome)]), ...(one.ban ? [make("p", "bad", banInWords(one.ban))] : []),
      ...(problem ? [make("p", "warn", problem)] : []));
    this.walk.replaceChildren(...explanation(found));
  }

  async act(change) {
    await this.result.of(change);
    return this.refresh();
  }
}

export function openDescriptor(one) {
  const descriptor = new Descriptor(one);
  disableUnlessAllowed(descriptor.result, [descriptor.ban, descriptor.reset, descriptor.unban]);
  return openDialog([entriesInWords(one.entries), make("span", "soft", ` in ${one.domain}`)], descriptor.contents(), () => descriptor.refresh());
}
