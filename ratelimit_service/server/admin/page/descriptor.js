// More of a descriptor, in the dialog: its counters now, and what an operator may do about it.

import {button, date, make, send, whole} from "./dom.js";
import {openDialog} from "./dialog.js";
import {banInWords, entriesInWords, explanation, stateInWords} from "./explanation.js";

const WHO = "the page";

function field(words, name, value, required) {
  const input = make("input", "");
  Object.assign(input, {name, value, required, maxLength: 200});
  return [make("label", "", words, " ", input), input];
}

class Descriptor {
  constructor({domain, entries, hits, refused}) {
    this.asked = {domain, entries};
    this.counts = hits === undefined ? "" : `${whole(hits)} hits lately, ${whole(refused)} of them refused.`;
    this.now = make("div", "");
    this.walk = make("div", "");
    this.result = make("p", "");
    this.result.setAttribute("role", "status");
    this.unban = button("Lift the ban", () => this.act(() => this.lift()));
  }

  contents() {
    const [long, length] = field("for", "for", "1h", true), [reason, why] = field("why", "why", "", true);
    const form = make("form", "tools", make("button", "", "Ban"), long, reason);
    length.size = 8;
    form.addEventListener("submit", event => {
      event.preventDefault();
      this.act(() => this.ban(length.value, why.value));
    });
    return [make("p", "soft", this.counts), this.now, form,
      make("p", "tools", button("Reset its counters", () => this.act(() => this.reset())), this.unban), this.result,
      make("details", "", make("summary", "", "Why this rule"), this.walk)];
  }

  async refresh() {
    try {
      const found = await send("/explain", {domain: this.asked.domain, descriptors: [{entries: this.asked.entries}]});
      this.show(found);
    } catch (error) {
      this.now.replaceChildren(make("p", "bad", error.message));
    }
  }

  show(found) {
    const [one = {rules: [], outcome: found.problem}] = found.descriptors;
    this.found = one.ban;
    this.unban.hidden = !one.ban;
    const lines = one.rules.filter(rule => rule.state).map(rule => make("p", "", `${rule.limit}: `, make("strong", "", stateInWords(rule.state))));
    this.now.replaceChildren(...(lines.length ? lines : [make("p", "", one.outcome)]), ...(one.ban ? [make("p", "bad", banInWords(one.ban))] : []),
      ...(found.store && found.store.problem ? [make("p", "warn", found.store.problem)] : []));
    this.walk.replaceChildren(...explanation(found));
  }

  async act(change) {
    try {
      this.say("good", await change());
    } catch (error) {
      this.say("bad", error.message);
    }
    return this.refresh();
  }

  say(className, words) {
    this.result.className = className;
    this.result.textContent = words;
  }

  async ban(length, why) {
    const made = await send("/bans", {...this.asked, for: length, why, who: WHO});
    return made.until === null ? "Banned for ever." : `Banned until ${date(made.until)}.`;
  }

  async lift() {
    const {domain, entries} = this.found;
    await send("/bans", {domain, entries, who: WHO}, "DELETE");
    return "The ban is lifted.";
  }

  async reset() {
    const {reset} = await send("/counters/reset", {...this.asked, who: WHO});
    return reset === 1 ? "1 counter is reset." : `${whole(reset)} counters are reset.`;
  }
}

export function openDescriptor(one) {
  const descriptor = new Descriptor(one);
  return openDialog([entriesInWords(one.entries), make("span", "soft", ` in ${one.domain}`)], descriptor.contents(), () => descriptor.refresh());
}
