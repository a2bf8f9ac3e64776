// Pointer, keyboard, filters, and the texts around the pictures.

// ---- what the pointer is on
const tip = $('tip');
const showTip = (title, tint, lines, x, y) => {
  const head = element('strong', null);
  head.append(swatch(tint), title);
  const list = element('dl', null);
  for (const [word, value] of lines) list.append(element('dt', word), element('dd', value));
  tip.replaceChildren(head, list);
  tip.hidden = false;
  tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${y + 18 + tip.offsetHeight > innerHeight ? Math.max(4, y - tip.offsetHeight - 10) : y + 18}px`;
};
const describe = (span, others, x, y) => {
  const track = trackOf[span], lines = [
    ['rank', groupOf(track)], ['resource', data.tracks[track][1]], ['start', time(starts[span])],
    ['duration', time(lengths[span])],
  ];
  if (sizes[span]) lines.push(['bytes', `${count(sizes[span])} B`]);
  if (sizes[span] && lengths[span]) lines.push(['rate', `${trim(((sizes[span] * 1e3) / lengths[span]).toFixed(2))} GB/s`]);
  if (peers[span] >= 0) lines.push(['peer', `rank ${peers[span]}`]);
  if (others > 0) lines.push(['here too', `${count(others)} more, zoom in`]);
  showTip(data.names[names[span]], data.colours[names[span]], lines, x, y);
};
const hover = (event) => {
  const box = gantt.querySelector('canvas').getBoundingClientRect(), x = event.clientX - box.left;
  const below = event.clientY - box.top;
  pointer = x;
  const [span, others] = below < AXIS ? [-1, 0] : spanAt(x, below - AXIS + gantt.scrollTop);
  chosen = span;
  if (span < 0) tip.hidden = true; else describe(span, others, event.clientX, event.clientY);
  draw();
};
const hoverLink = (event) => {
  const box = heat.querySelector('canvas').getBoundingClientRect(), x = event.clientX - box.left;
  const below = event.clientY - box.top, link = linkRows[Math.floor((below - AXIS + heat.scrollTop) / LINK)];
  const at = view.low + ((x - GUTTER) * (view.high - view.low)) / (box.width - GUTTER);
  const bin = links.edges_ps.findIndex((edge, idx) => idx < numBins && at >= edge && at < links.edges_ps[idx + 1]);
  if (below < AXIS || x < GUTTER || link === undefined || bin < 0) { tip.hidden = true; return; }
  const value = loads[link * numBins + bin], [low, high] = [links.edges_ps[bin], links.edges_ps[bin + 1]];
  showTip(links.labels[link], value ? heatColour(value) : colour.idle, [
    ['used', `${(100 * value).toFixed(1)} % of ${trim((links.capacity[link] / 1e9).toFixed(3))} GB/s`],
    ['from', time(low)], ['to', time(high)], ['mean', `${(100 * links.mean[link]).toFixed(1)} % of the whole time`],
  ], event.clientX, event.clientY);
};

// ---- moving about
const show = (low, high) => {
  const wide = Math.min(lastEnd, Math.max(20, high - low));
  view.low = Math.max(0, Math.min(low, lastEnd - wide));
  view.high = view.low + wide;
  draw();
};
const zoom = (factor, at = (view.low + view.high) / 2) =>
  show(at - (at - view.low) * factor, at + (view.high - at) * factor);
const pan = (part) => show(view.low + part * (view.high - view.low), view.high + part * (view.high - view.low));
const timeAt = (frame, clientX) => {
  const box = frame.querySelector('canvas').getBoundingClientRect();
  return view.low + ((clientX - box.left - GUTTER) * (view.high - view.low)) / (box.width - GUTTER);
};
const step = (by) => {
  const isShown = new Set(rows.map((row) => row.track));
  let span = chosen < 0 ? (by > 0 ? -1 : numSpans) : chosen;
  do span += by; while (span >= 0 && span < numSpans && !(isShown.has(trackOf[span]) && isPhaseOn[names[span]]));
  if (span < 0 || span >= numSpans) return;
  chosen = span;
  const row = rows.find((item) => item.track === trackOf[span]);
  gantt.scrollTop = Math.min(Math.max(gantt.scrollTop, row.y + row.height + AXIS - gantt.clientHeight), row.y);
  if (starts[span] < view.low || endOf(span) > view.high) show(starts[span] - (view.high - view.low) / 3,
    Math.max(endOf(span), starts[span] + (2 * (view.high - view.low)) / 3));
  const box = boxOf(span), frame = gantt.getBoundingClientRect();
  if (box) describe(span, 0, frame.left + box.x, frame.top + box.y);
  $('status').textContent = tip.innerText.replace(/\s+/g, ' ');
};
const KEYS = {
  ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2), a: () => pan(-0.2), d: () => pan(0.2),
  '+': () => zoom(0.6), '=': () => zoom(0.6), w: () => zoom(0.6), '-': () => zoom(1 / 0.6), s: () => zoom(1 / 0.6),
  0: () => show(0, lastEnd), n: () => step(1), p: () => step(-1),
};
gantt.addEventListener('keydown', (event) => {
  const act = KEYS[event.key];
  if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  act();
});
for (const frame of [gantt, heat]) {
  frame.addEventListener('wheel', (event) => {
    const isSideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (!event.ctrlKey && !event.metaKey && !isSideways) return; // scrolls the rows, and then the page
    event.preventDefault();
    if (isSideways) pan((event.deltaX || event.deltaY) / 1500);
    else zoom(Math.exp(event.deltaY / 400), timeAt(frame, event.clientX));
  }, { passive: false });
  frame.addEventListener('scroll', draw);
  frame.addEventListener('pointerleave', () => { tip.hidden = true; pointer = null; chosen = -1; draw(); });
}
let grip = null;
gantt.addEventListener('pointerdown', (event) => {
  if (event.button !== 0 || event.target.tagName !== 'CANVAS') return;
  grip = { x: event.clientX, y: event.clientY, low: view.low, high: view.high, top: gantt.scrollTop };
  event.target.setPointerCapture(event.pointerId);
});
gantt.addEventListener('pointermove', (event) => {
  if (!grip) { hover(event); return; }
  const perPs = (gantt.querySelector('canvas').clientWidth - GUTTER) / (grip.high - grip.low);
  const moved = (event.clientX - grip.x) / perPs;
  gantt.classList.add('drag');
  tip.hidden = true;
  gantt.scrollTop = grip.top - (event.clientY - grip.y);
  show(grip.low - moved, grip.high - moved);
});
for (const name of ['pointerup', 'pointercancel'])
  gantt.addEventListener(name, () => { grip = null; gantt.classList.remove('drag'); });
heat.addEventListener('pointermove', hoverLink);
$('in').onclick = () => zoom(0.6);
$('out').onclick = () => zoom(1 / 0.6);
$('fit').onclick = () => show(0, lastEnd);

// ---- the page around
const tell = () => {
  if (document.activeElement === gantt && chosen >= 0) return;
  const tracks = rows.filter((row) => row.track >= 0).length;
  const groups = new Set(rows.map((row) => row.group)).size;
  $('status').textContent = `${count(tracks)} of ${count(numTracks)} resources of ${count(groups)} ` +
    `of ${count(data.groups.length)} ${data.group_word}, ${time(view.low, 3)} to ${time(view.high, 3)}`;
};
const chip = (text, tint, change) => {
  const made = element('button', null, { class: 'chip', type: 'button', 'aria-pressed': 'true' });
  if (tint) made.append(swatch(tint));
  made.append(text);
  made.onclick = () => {
    const isOn = made.getAttribute('aria-pressed') !== 'true';
    made.setAttribute('aria-pressed', String(isOn));
    change(isOn);
  };
  return made;
};
$('title').textContent = data.title;
$('told').textContent = data.told;
for (const [word, value] of data.facts) {
  const item = element('li', null);
  item.append(element('b', value), element('span', word));
  $('facts').append(item);
}
for (const [key, value] of data.meta) $('meta').append(element('dt', key), element('dd', value));
$('phases').append(...data.phase_order.map((phase) =>
  chip(data.names[phase], data.colours[phase], (isOn) => { isPhaseOn[phase] = isOn; draw(); })));
$('resources').append(...kinds.map((kind) => chip(titleOf(kind), null, (isOn) => { isKindOn.set(kind, isOn); layOut(); })));
for (const [name, busy, share] of data.busiest) {
  const row = element('tr', null);
  row.append(...[name, time(busy, 3), `${(100 * share).toFixed(1)} %`].map((cell) => element('td', cell)));
  $('busy').tBodies[0].append(row);
}
$('ranks').addEventListener('input', layOut);
if (links) {
  $('links').hidden = false;
  $('link').addEventListener('input', pickLinks);
  $('busiest').addEventListener('change', pickLinks);
  $('scale').style.background = `linear-gradient(90deg, ${HEAT.map((_, idx) => heatColour(idx / (HEAT.length - 1))).join()})`;
  linkRows = links.labels.map((_, link) => link);
}
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => { readColours(); draw(); });
addEventListener('resize', resize);
readColours();
layOut();
// For scripts and tests: where a span is drawn in the window, and the time window.
window.epsim = {
  view, show,
  place: (span) => {
    const box = boxOf(span), frame = gantt.querySelector('canvas').getBoundingClientRect();
    return box && { x: frame.left + box.x + box.width / 2, y: frame.top + box.y + box.height / 2 };
  },
  drawNow: () => { drawGantt(); drawHeat(); },
};
