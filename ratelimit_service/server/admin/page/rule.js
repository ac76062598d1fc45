// More of a rule, in the dialog: its last sixty minutes, its hottest descriptors, and what another limit would refuse.

import {facts, get, make, OUTCOMES, pathWords} from "./dom.js";
import {Chart} from "./chart.js";
import {openDialog} from "./dialog.js";
import {HotTables} from "./hot.js";
import {WhatIf} from "./whatif.js";

const OF_A_RULE = [...OUTCOMES.filter(([name]) => name !== "unlimited"), ["spared", "Spared"]];

export function openRule(rule) {
  const asked = {domain: rule.domain, rule: rule.path.join(".")};
  const chart = new Chart(OF_A_RULE), hot = new HotTables(), whatIf = new WhatIf(asked), problem = make("p", "bad");
  const fixed = [["Limit", rule.limit], ["Options", rule.options.join(", ")], ["Where", rule.place]];
  const list = make("div", "", facts(fixed));
  return openDialog(pathWords([rule.domain, ...rule.path]), [list, problem, chart.figure, hot.section, whatIf.section], async () => {
    try {
      const history = await get("/status/history", asked);
      chart.fill("Cost of each minute", history.columns, history);
      const {reserved, settled} = history.reservations;
      list.replaceChildren(facts([...fixed, ["Reserved", reserved], ["Settled", settled]]));
      hot.fill(await get("/status/hot", asked), false);
      problem.replaceChildren();
    } catch (error) {
      problem.replaceChildren(error.message);
    }
    await whatIf.refresh();
  });
}
