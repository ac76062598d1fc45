// Who asks most, and who is refused most: the hottest descriptors of all rules.

import {at} from "./dom.js";
import {HotTables} from "./hot.js";

const tables = new HotTables();
at("who").append(tables.section);

export function show({hot}) {
  at("who").hidden = !hot;
  if (hot) tables.fill(hot, true);
}
