// Draws the timeline on one canvas and the load of links on another, both over one time window.

const gantt = $('gantt'), heat = $('heat');
let colour = {}, asked = false, pointer = null, chosen = -1;
const readColours = () => {
  const style = getComputedStyle(document.documentElement);
  for (const name of ['back', 'panel', 'stripe', 'line', 'text', 'soft', 'accent', 'idle'])
    colour[name] = style.getPropertyValue(`--${name}`).trim();
};
const fitCanvas = (frame, height) => {
  const canvas = frame.querySelector('canvas'), scale = devicePixelRatio || 1;
  const shown = Math.min(height, parseFloat(getComputedStyle(frame).maxHeight) || height);
  frame.querySelector('.filler').style.height = `${Math.max(0, height - shown)}px`;
  canvas.style.height = `${shown}px`;
  const width = frame.clientWidth; // less the scroll bar, which the two heights above may have brought
  canvas.style.width = `${width}px`;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(shown * scale);
  return canvas;
};
const resize = () => {
  fitCanvas(gantt, AXIS + Math.max(rowsHeight, 60));
  if (data.links) fitCanvas(heat, AXIS + Math.max(linkRows.length, 1) * LINK + 4);
  draw();
};
const draw = () => {
  if (!asked) requestAnimationFrame(() => { asked = false; drawGantt(); drawHeat(); tell(); });
  asked = true;
};
const FONT = 'system-ui, "DejaVu Sans", sans-serif';
const begin = (frame) => {
  const canvas = frame.querySelector('canvas'), scale = devicePixelRatio || 1, context = canvas.getContext('2d');
  context.setTransform(scale, 0, 0, scale, 0, 0);
  const width = canvas.width / scale, height = canvas.height / scale;
  context.fillStyle = colour.back;
  context.fillRect(0, 0, width, height);
  context.font = `12px ${FONT}`;
  context.textBaseline = 'middle';
  return { context, width, height, perPs: (width - GUTTER) / (view.high - view.low) };
};
const cut = (context, text, room) => {
  if (context.measureText(text).width <= room) return text;
  let kept = Math.max(0, Math.floor((text.length * room) / context.measureText(text).width) - 1);
  while (kept > 0 && context.measureText(`${text.slice(0, kept)}…`).width > room) kept--;
  return kept > 1 ? `${text.slice(0, kept)}…` : '';
};
const axis = ({ context, width, height, perPs }) => {
  const rough = (110 / perPs), power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(1, [1, 2, 5, 10].find((factor) => factor * power >= rough) * power);
  context.fillStyle = colour.panel;
  context.fillRect(0, 0, width, AXIS);
  context.strokeStyle = colour.line;
  context.textAlign = 'left';
  context.beginPath();
  for (let tick = Math.ceil(view.low / step) * step; tick <= view.high; tick += step) {
    const x = Math.round(GUTTER + (tick - view.low) * perPs) + 0.5;
    context.moveTo(x, AXIS - 7);
    context.lineTo(x, height);
    context.fillStyle = colour.soft;
    context.fillText(time(tick), x + 4, AXIS / 2);
  }
  context.stroke();
};
const firstVisible = (track) => {
  let low = cuts[track], high = cuts[track + 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (latestEnds[middle] < view.low) low = middle + 1; else high = middle;
  }
  return low;
};
const laneBox = (row, lane) => {
  const step = (row.height - 4) / numLanes[row.track];
  return [row.y + 2 + lane * step, Math.max(1, step - (step > 6 ? 2 : 0))];
};
const drawTrack = ({ context, width, perPs }, row, top) => {
  // Of the spans narrower than a pixel only the longest of each pixel and lane is drawn.
  const pixels = new Int32Array(numLanes[row.track]).fill(-1), best = new Int32Array(numLanes[row.track]);
  const put = (span, x, wide) => {
    const [y, height] = laneBox(row, lanes[span]);
    context.fillStyle = data.colours[names[span]];
    context.fillRect(x, y + top, wide, height);
    if (wide > 34 && height > 10) {
      context.fillStyle = data.inks[names[span]];
      context.fillText(cut(context, data.names[names[span]], wide - 8), x + 4, y + top + height / 2 + 0.5);
    }
  };
  for (let span = firstVisible(row.track); span < cuts[row.track + 1] && starts[span] <= view.high; span++) {
    if (!isPhaseOn[names[span]] || endOf(span) < view.low) continue;
    const left = Math.max(GUTTER, GUTTER + (starts[span] - view.low) * perPs);
    const right = Math.min(width, GUTTER + (endOf(span) - view.low) * perPs);
    const lane = lanes[span], pixel = Math.floor(left);
    if (right - left >= 1.5) { put(span, left, right - left - (right - left > 4 ? 0.6 : 0)); continue; }
    if (pixel === pixels[lane] && lengths[span] <= lengths[best[lane]]) continue;
    if (pixel !== pixels[lane] && pixels[lane] >= 0) put(best[lane], pixels[lane], 1);
    pixels[lane] = pixel;
    best[lane] = span;
  }
  pixels.forEach((pixel, lane) => { if (pixel >= 0) put(best[lane], pixel, 1); });
};
const drawGantt = () => {
  const paper = begin(gantt), { context, width, height, perPs } = paper, top = AXIS - gantt.scrollTop;
  const shown = rows.filter((row) => row.y + row.height + top > AXIS && row.y + top < height);
  context.textAlign = 'left';
  for (const row of shown) {
    context.fillStyle = row.track < 0 ? colour.panel : colour.stripe;
    context.fillRect(0, row.y + top, width, row.height - 1);
  }
  axis(paper);
  context.save();
  context.beginPath();
  context.rect(0, AXIS, width, height - AXIS);
  context.clip();
  for (const row of shown) {
    if (row.track >= 0) drawTrack(paper, row, top);
    context.fillStyle = row.track < 0 ? colour.panel : colour.stripe;
    context.fillRect(0, row.y + top, GUTTER - 1, row.height - 1);
    context.fillStyle = row.track < 0 ? colour.text : colour.soft;
    const text = row.track < 0 ? row.group : data.tracks[row.track][1];
    if (row.track < 0) context.font = `600 12px ${FONT}`;
    context.fillText(cut(context, text, GUTTER - 28), row.track < 0 ? 10 : 20, row.y + top + row.height / 2);
    context.font = `12px ${FONT}`;
  }
  const box = chosen >= 0 && boxOf(chosen);
  if (box) {
    context.strokeStyle = colour.text;
    context.lineWidth = 2;
    context.strokeRect(box.x, box.y, box.width, box.height);
  }
  if (rows.length === 0) context.fillText('No resource matches the filters.', GUTTER + 10, AXIS + 24);
  context.restore();
  if (pointer !== null && pointer >= GUTTER) {
    const at = view.low + (pointer - GUTTER) / perPs, text = time(at);
    context.fillStyle = colour.accent;
    context.fillRect(pointer, AXIS, 1, height);
    const wide = context.measureText(text).width + 12, x = Math.min(pointer - wide / 2, width - wide);
    context.fillRect(x, 3, wide, AXIS - 8);
    context.fillStyle = colour.back;
    context.fillText(text, x + 6, AXIS / 2 - 0.5);
  }
};
// Where a span is on the canvas of the timeline, null when its row or time is not in sight.
const boxOf = (span) => {
  const row = rows.find((item) => item.track === trackOf[span]);
  const canvas = gantt.querySelector('canvas'), width = canvas.clientWidth;
  if (!row || !isPhaseOn[names[span]]) return null;
  const perPs = (width - GUTTER) / (view.high - view.low), [y, height] = laneBox(row, lanes[span]);
  const left = Math.max(GUTTER, GUTTER + (starts[span] - view.low) * perPs);
  const right = Math.min(width, GUTTER + (endOf(span) - view.low) * perPs), up = y + AXIS - gantt.scrollTop;
  if (right < GUTTER || left > width || up < AXIS || up + height > canvas.clientHeight) return null;
  return { x: left, y: up, width: Math.max(1, right - left), height };
};
const spanAt = (x, y) => {
  const row = rows.find((item) => y >= item.y && y < item.y + item.height);
  if (!row || row.track < 0 || x < GUTTER) return [-1, 0];
  const perPs = (gantt.querySelector('canvas').clientWidth - GUTTER) / (view.high - view.low);
  const at = view.low + (x - GUTTER) / perPs, near = 1.5 / perPs;
  let found = -1, others = -1;
  for (let span = firstVisible(row.track); span < cuts[row.track + 1] && starts[span] <= at + near; span++) {
    if (!isPhaseOn[names[span]] || endOf(span) < at - near) continue;
    const [top, height] = laneBox(row, lanes[span]);
    if (y < top - 1 || y > top + height + 1) continue;
    others += 1;
    const isIn = (one) => starts[one] <= at && endOf(one) >= at;
    if (found < 0 || isIn(span) > isIn(found) || (isIn(span) === isIn(found) && lengths[span] > lengths[found])) found = span;
  }
  return [found, Math.max(0, others)];
};

// ---- links
const links = data.links, loads = links ? decode(links.utilisation) : null;
const numBins = links ? links.edges_ps.length - 1 : 0;
let linkRows = [];
const HEAT = [[0, 32, 76], [49, 68, 107], [102, 104, 112], [149, 143, 120], [202, 185, 105], [255, 234, 70]];
const heatColour = (value) => {
  const place = Math.min(1, value) * (HEAT.length - 1), low = Math.min(HEAT.length - 2, Math.floor(place));
  const mix = HEAT[low].map((from, idx) => Math.round(from + (HEAT[low + 1][idx] - from) * (place - low)));
  return `rgb(${mix.join(',')})`;
};
const pickLinks = () => {
  const wanted = $('link').value.toLowerCase();
  linkRows = links.labels.map((_, link) => link).filter((link) => links.labels[link].toLowerCase().includes(wanted));
  if ($('busiest').checked) linkRows.sort((a, b) => links.mean[b] - links.mean[a] || a - b);
  resize();
};
const drawHeat = () => {
  if (!links) return;
  const paper = begin(heat), { context, width, height, perPs } = paper, top = AXIS - heat.scrollTop;
  axis(paper);
  context.save();
  context.beginPath();
  context.rect(0, AXIS, width, height - AXIS);
  context.clip();
  linkRows.forEach((link, place) => {
    const y = top + place * LINK;
    if (y + LINK < AXIS || y > height) return;
    context.fillStyle = colour.idle;
    context.fillRect(GUTTER, y, width - GUTTER, LINK - 1);
    let pixel = -1, most = 0;
    const flush = () => {
      if (pixel < 0 || most === 0) return;
      context.fillStyle = heatColour(most);
      context.fillRect(pixel, y, 1, LINK - 1);
    };
    for (let bin = 0; bin < numBins; bin++) {
      const value = loads[link * numBins + bin];
      const left = Math.max(GUTTER, GUTTER + (links.edges_ps[bin] - view.low) * perPs);
      const right = Math.min(width, GUTTER + (links.edges_ps[bin + 1] - view.low) * perPs);
      if (right <= left || value === 0) continue;
      if (right - left >= 1) {
        context.fillStyle = heatColour(value);
        context.fillRect(left, y, right - left + 0.3, LINK - 1);
      } else if (Math.floor(left) === pixel) most = Math.max(most, value);
      else { flush(); pixel = Math.floor(left); most = value; }
    }
    flush();
    context.fillStyle = colour.soft;
    context.textAlign = 'left';
    context.font = `11px ${FONT}`;
    context.fillText(cut(context, links.labels[link], GUTTER - 18), 10, y + LINK / 2);
  });
  context.restore();
};
