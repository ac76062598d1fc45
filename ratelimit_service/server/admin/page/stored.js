// The rules that the service keeps for the API. A click on a domain opens them: to be changed after a preview, or rolled back.

import {disableUnlessAllowed, Result} from "./acts.js";
import {arrange, at, button, date, fetched, get, link, make, whole} from "./dom.js";
import {openDialog} from "./dialog.js";

const HEADS = ["Domain", "Version", "Put", "By", "Why"], WHO = "the page", TYPES = {yaml: "application/yaml", json: "application/json"};
let key = "", last = null;

function pathOf(domain, rest = "", parameters = {}) {
  const query = new URLSearchParams(parameters).toString();
  return `/rules/${encodeURIComponent(domain)}${rest}${query ? `?${query}` : ""}`;
}

// A number that only differs: what it would have done lately, as far as the service knows.
async function lately({domain, old, new: now}) {
  const rest = one => one.limit.replace(/^[\d,]+/, "");
  if (!old || !now || old.requests === null || now.requests === null || old.requests === now.requests || rest(old) !== rest(now)) return "";
  try {
    const found = await get("/status/what-if", {domain, rule: old.rule.slice(domain.length + 1), requests: now.requests});
    return `In the last ${found.seconds} s it would have refused ${whole(found.would.refused)} of ${whole(found.hits)}, in place of ${whole(found.was.refused)}.`;
  } catch {
    return ""; // of such a limit nothing can be said
  }
}

async function changeLines(change) {
  const what = change.differences.map(one => `${one.what === "limit" ? "" : `${one.what}: `}${one.old} → ${one.new}`).join("; ");
  const counters = change.counters ? `Counters ${change.counters === "kept" ? "are kept" : "start afresh"}.` : "";
  const more = [counters, await lately(change)].filter(Boolean).join(" ");
  return make("li", "", make("span", "mono", [change.domain, ...change.descriptors].join(" › ")), `: ${what} `, make("span", "soft", more));
}

async function previewOf(found) {
  if (found.same) return [make("p", "good", "No request would get another limit.")];
  return [make("p", "", `${whole(found.added + found.removed + found.changed)} changes of limits${found.changes.length === 1000 ? ", of which the first" : ""}:`), make("ul", "plain", ...await Promise.all(found.changes.map(changeLines)))];
}

class Editor {
  constructor(domain) {
    this.domain = domain;
    this.text = make("textarea", "mono");
    Object.assign(this.text, {rows: 16, spellcheck: false, ariaLabel: "Rules"});
    this.why = make("input", "");
    Object.assign(this.why, {ariaLabel: "Why", placeholder: "Why", maxLength: 500});
    this.result = new Result();
    this.preview = make("div", "");
    this.preview.setAttribute("aria-live", "polite");
    this.past = make("tbody", "");
    this.putting = button("Put", () => this.result.of(() => this.put()));
    this.deleting = button("Delete", () => this.result.of(() => this.change("DELETE", "", {})));
    this.previewing = button("Preview", () => this.result.of(() => this.show()));
    this.text.addEventListener("input", () => { this.putting.disabled = true; });
    this.putting.disabled = true;
  }

  async open() {
    const table = make("div", "frame short", make("table", "", this.past));
    await openDialog([this.domain], [this.text, make("p", "tools", this.previewing, this.why, this.putting, this.deleting), this.result.line, this.preview,
      make("h3", "", "History"), table]);
    await this.result.of(() => this.read());
    disableUnlessAllowed(this.result, [this.previewing, this.deleting]);
  }

  // What is present; of a domain that has no rules yet, a beginning.
  async read() {
    this.kind = "yaml";
    this.precondition = {"If-None-Match": "*"};
    const {versions} = await get(pathOf(this.domain, "/history")).catch(() => ({versions: []}));
    const [present] = versions;
    this.deleting.disabled = !present || present.deleted;
    if (present && !present.deleted) {
      const answer = await fetched(pathOf(this.domain));
      this.kind = answer.headers.get("Content-Type").includes("json") ? "json" : "yaml";
      this.precondition = {"If-Match": answer.headers.get("ETag")};
      this.text.value = await answer.text();
    } else {
      if (present) this.precondition = {"If-Match": `"${present.version}"`};
      this.text.value = `domain: ${JSON.stringify(this.domain)}\ndescriptors: []\n`;
    }
    arrange(this.past, versions.map((one, index) => this.row(one, index)));
    return present && !present.deleted ? `Version ${present.version}.` : "There are no rules of this domain here yet.";
  }

  row(one, index) {
    const back = button("Roll back", () => this.result.of(() => this.change("POST", "/rollback", {to: one.version})));
    const what = one.deleted ? "deleted" : one.restores ? `as ${one.restores}` : "put";
    return make("tr", "", make("td", "mono", one.version), make("td", "", date(one.at)), make("td", "", what), make("td", "", `${one.who} from ${one.address}`),
      make("td", "", one.why), make("td", "", ...(index && !one.deleted ? [back] : [])));
  }

  async show() {
    const text = this.text.value;
    const answer = await fetched(pathOf(this.domain, "/diff"), {method: "POST", headers: {"Content-Type": TYPES[this.kind]}, body: text});
    this.preview.replaceChildren(...await previewOf(await answer.json()));
    this.putting.disabled = this.text.value !== text;
    return "These rules can be put.";
  }

  put() {
    return this.change("PUT", "", {}, {headers: {"Content-Type": TYPES[this.kind]}, body: this.text.value});
  }

  async change(method, rest, parameters, {headers = {}, body} = {}) {
    const path = pathOf(this.domain, rest, {...parameters, who: WHO, why: this.why.value});
    const {version} = await (await fetched(path, {method, headers: {...headers, ...this.precondition}, body})).json();
    this.putting.disabled = true;
    this.preview.replaceChildren();
    await this.read();
    key = "";
    return `Done: version ${version}.`;
  }
}

function makeRow(one) {
  const domain = link(one.domain);
  domain.addEventListener("click", () => new Editor(one.domain).open());
  const row = make("tr", "", make("td", "mono", domain), make("td", "mono", one.version), make("td", "", date(one.at)), make("td", "", one.who || one.address), make("td", "", one.why));
  HEADS.forEach((head, index) => { row.cells[index].dataset.head = head; });
  return row;
}

at("stored-heads").append(...HEADS.map(head => make("th", "", head)));

export async function show(status) {
  last = status;
  const source = (status.reload.sources || []).find(({kind}) => kind === "api");
  at("stored").hidden = !source;
  if (!source || !at("stored").open || key === source.version) return;
  try {
    arrange(at("stored-rows"), (await get("/rules")).documents.map(makeRow));
    key = source.version;
    at("stored-problem").textContent = "";
  } catch (error) {
    at("stored-problem").textContent = error.message;
  }
}

at("stored").addEventListener("toggle", () => { if (last) show(last); });
at("stored-form").addEventListener("submit", event => {
  event.preventDefault();
  new Editor(at("stored-domain").value).open();
});
