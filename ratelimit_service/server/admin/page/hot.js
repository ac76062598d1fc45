// The hottest descriptors as tables: the most refused, and the most asked.

import {ago, arrange, link, make, pathCell, setText, whole} from "./dom.js";
import {entriesInWords} from "./explanation.js";
import {openDescriptor} from "./descriptor.js";

const HEADS = ["Domain", "Rule", "Descriptor", "Hits", "Refused"], FIRST_NUMBER = 3;

function makeRow({domain, rule, entries}) {
  const named = entries.map(([key, value]) => ({key, value})), name = link(entriesInWords(named));
  const row = make("tr", "", make("td", "mono", domain), pathCell(rule), make("td", "mono", name), make("td", "number"), make("td", ""));
  name.addEventListener("click", () => openDescriptor({...row.one, entries: named}));
  HEADS.forEach((head, index) => { row.cells[index].dataset.head = head; });
  return row;
}

class HotTable {
  constructor(title) {
    this.rows = new Map();
    this.body = make("tbody", "");
    const heads = HEADS.map((text, index) => make("th", index < FIRST_NUMBER ? "" : "number", text));
    this.section = make("div", "", make("h3", "", title),
      make("div", "frame short", make("table", "cards-if-narrow", make("thead", "", make("tr", "", ...heads)), this.body)));
  }

  // Rows stay, so that one that has the focus keeps it.
  fill(all) {
    this.rows = new Map(all.map(one => {
      const key = JSON.stringify([one.domain, one.rule, one.entries]), row = this.rows.get(key) || makeRow(one);
      row.one = one;
      row.cells[FIRST_NUMBER].textContent = whole(one.hits);
      row.cells[FIRST_NUMBER + 1].textContent = whole(one.refused);
      row.cells[FIRST_NUMBER + 1].className = one.refused ? "number bad" : "number zero";
      return [key, row];
    }));
    arrange(this.body, [...this.rows.values()]);
    this.section.hidden = !all.length;
  }
}

export class HotTables {
  constructor() {
    this.refused = new HotTable("Most refused");
    this.hits = new HotTable("Most asked");
    this.meaning = make("p", "soft");
    this.section = make("div", "hot", this.meaning, make("div", "pair", this.refused.section, this.hits.section));
  }

  // The sums and errors of `hot` are of all rules, also when its lists are of one.
  fill(hot, ofAll) {
    this.refused.fill(hot.most_refused);
    this.hits.fill(hot.most_hits);
    const sums = ofAll ? `: ${whole(hot.hits)} hits, ${whole(hot.refused)} of them refused.` : ".";
    let exact = "";
    if (hot.skipped) exact = ` They are estimates: ${whole(hot.skipped)} hits were too many to look at.`;
    else if (hot.error || hot.refused_error) {
      exact = ` A number of hits is too high by ${whole(hot.error)} at most, one of refusals by ${whole(hot.refused_error)}, and none is too low.`;
    }
    setText(this.meaning, `${ofAll ? "In" : "Of this rule, in"} the last ${ago(hot.seconds)}${sums}${exact}`);
  }
}
