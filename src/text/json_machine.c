/* States of a JSON text, and the stacks that they share. */
#include "text/json_machine.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

static bool machine_room(void *data, size_t element, uint32_t count, uint32_t *room) {
  if (count < *room) return true;
  if (wn_resize(NULL, "a JSON text", data, element, count, 2 * (size_t)*room) != WN_OK) return false;
  *room *= 2;
  return true;
}

void wn_json_add(struct wn_json_machine *m, const struct wn_json_state *state) {
  const struct wn_json_state copy = *state; /* the state may lie in the array that grows */
  if (!machine_room(&m->states, sizeof copy, m->state_count, &m->state_room)) m->failed = true;
  if (!m->failed) m->states[m->state_count++] = copy;
}

uint32_t wn_json_push(struct wn_json_machine *m, uint32_t up, uint32_t shape, uint32_t index) {
  const uint64_t hash = (m->frames[up].hash ^ ((uint64_t)shape << 32 | index)) * 0x9E3779B97F4A7C15u;
  const struct wn_json_frame frame = {
      .up = up, .shape = shape, .index = index, .depth = m->frames[up].depth + 1, .hash = hash ^ hash >> 29};
  if (!machine_room(&m->frames, sizeof frame, m->frame_count, &m->frame_room)) m->failed = true;
  if (m->failed) return 0;
  m->frames[m->frame_count] = frame;
  return m->frame_count++;
}

wn_status wn_json_machine_open(wn_context *ctx, const struct wn_schema *schema, struct wn_json_machine *m) {
  *m = (struct wn_json_machine){.schema = schema, .frame_room = 64, .state_room = 64};
  WN_TRY(WN_ALLOC(ctx, "a JSON text", m->frame_room, &m->frames));
  WN_TRY(WN_ALLOC(ctx, "a JSON text", m->state_room, &m->states));
  wn_json_machine_reset(m);
  return WN_OK;
}

void wn_json_machine_close(struct wn_json_machine *m) {
  wn_free(m->frames);
  wn_free(m->states);
  *m = (struct wn_json_machine){0};
}

void wn_json_machine_reset(struct wn_json_machine *m) {
  m->frames[0] = (struct wn_json_frame){0};
  m->frame_count = 1;
  m->states[0] = (struct wn_json_state){.mode = WN_JSON_VALUE, .what = m->schema->root};
  m->state_count = 1;
}

static bool machine_same_stack(const struct wn_json_machine *m, uint32_t a, uint32_t b) {
  while (a != b) {
    const struct wn_json_frame *x = &m->frames[a], *y = &m->frames[b];
    if (x->hash != y->hash || x->shape != y->shape || x->index != y->index || x->depth != y->depth) return false;
    a = x->up, b = y->up;
  }
  return true;
}

static bool machine_same(const struct wn_json_machine *m, const struct wn_json_state *a,
                         const struct wn_json_state *b) {
  return a->mode == b->mode && a->part == b->part && a->lines == b->lines && a->blanks == b->blanks &&
         a->what == b->what && a->low == b->low && a->high == b->high && a->at == b->at && a->number == b->number &&
         machine_same_stack(m, a->top, b->top);
}

void wn_json_unique(struct wn_json_machine *m, uint32_t first) {
  uint32_t kept = first;
  for (uint32_t i = first; i < m->state_count && kept - first < WN_SCHEMA_ALTERNATIVES; i++) {
    uint32_t k = first;
    while (k < kept && !machine_same(m, &m->states[k], &m->states[i])) k++;
    if (k == kept) m->states[kept++] = m->states[i];
  }
  m->state_count = kept;
}

void wn_json_keep(struct wn_json_machine *m, uint32_t first) {
  const uint32_t count = m->state_count - first;
  memmove(m->states, m->states + first, count * sizeof *m->states);
  m->state_count = count;
  for (uint32_t i = 0; i < m->frame_count; i++) m->frames[i].moved = 0;
  for (uint32_t i = 0; i < count; i++)
    for (uint32_t f = m->states[i].top; f && !m->frames[f].moved; f = m->frames[f].up) m->frames[f].moved = 1;
  uint32_t kept = 1;
  for (uint32_t f = 1; f < m->frame_count; f++) { /* a frame's parent lies before it and has been moved already */
    if (!m->frames[f].moved) continue;
    struct wn_json_frame frame = m->frames[f];
    frame.up = frame.up ? m->frames[frame.up].moved : 0;
    m->frames[f].moved = kept;
    frame.moved = m->frames[kept].moved; /* the new place of the frame that lay there, which may still be looked up */
    if (kept == f) frame.moved = kept;
    m->frames[kept++] = frame;
  }
  for (uint32_t i = 0; i < count; i++) m->states[i].top = m->states[i].top ? m->frames[m->states[i].top].moved : 0;
  m->frame_count = kept;
}
