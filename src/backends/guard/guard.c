/* Runs ref's operations on the real addresses of arrays: each slot copies its arguments and replaces every array by the
 * address of its data. An array that is not in the backend's memory is an error that names it, so host memory cannot
 * slip through to an operation either. */
#include "backends/guard/guard.h"

#include <pthread.h>
#include <string.h>

#include "backends/backends.h"
#include "ops/attention.h"
#include "ops/evict.h"
#include "ops/evictions.h"
#include "ops/sample.h"
#include "ops/terms.h"

struct guard_field {
  size_t at; /* offset of the pointer in the arguments */
  const char *name;
};
#define GUARD_FIELDS 72
#define GUARD(op, member)                                                                                              \
  { offsetof(struct wn_##op, member), #member }

static const struct guard_field linear_fields[GUARD_FIELDS] = {GUARD(linear, x),  GUARD(linear, w),  GUARD(linear, b),
                                                               GUARD(linear, y),  GUARD(linear, dy), GUARD(linear, dx),
                                                               GUARD(linear, dw), GUARD(linear, db)};
static const struct guard_field embedding_fields[GUARD_FIELDS] = {
    GUARD(embedding, ids), GUARD(embedding, positions), GUARD(embedding, tok),  GUARD(embedding, pos),
    GUARD(embedding, y),   GUARD(embedding, dy),        GUARD(embedding, dtok), GUARD(embedding, dpos)};
static const struct guard_field norm_fields[GUARD_FIELDS] = {
    GUARD(norm, x),    GUARD(norm, add),  GUARD(norm, sum), GUARD(norm, gain), GUARD(norm, shift), GUARD(norm, y),
    GUARD(norm, rstd), GUARD(norm, mean), GUARD(norm, dy),  GUARD(norm, dx),   GUARD(norm, dgain), GUARD(norm, dshift)};
static const struct guard_field rope_fields[GUARD_FIELDS] = {GUARD(rope, x), GUARD(rope, positions),
                                                             GUARD(rope, cos_sin), GUARD(rope, frequencies)};
static const struct guard_field act_fields[GUARD_FIELDS] = {GUARD(act, x), GUARD(act, y), GUARD(act, dy),
                                                            GUARD(act, dx)};
static const struct guard_field expert_fields[GUARD_FIELDS] = {GUARD(expert, in), GUARD(expert, out),
                                                               GUARD(expert, d_in), GUARD(expert, d_out)};
static const struct guard_field experts_fields[GUARD_FIELDS] = {GUARD(experts, x),
                                                                GUARD(experts, router),
                                                                GUARD(experts, shared.in),
                                                                GUARD(experts, shared.out),
                                                                GUARD(experts, shared.d_in),
                                                                GUARD(experts, shared.d_out),
                                                                GUARD(experts, y),
                                                                GUARD(experts, shared_gate),
                                                                GUARD(experts, prob),
                                                                GUARD(experts, weight),
                                                                GUARD(experts, chosen),
                                                                GUARD(experts, place),
                                                                GUARD(experts, in),
                                                                GUARD(experts, shared_in),
                                                                GUARD(experts, shared_factor),
                                                                GUARD(experts, shared_out),
                                                                GUARD(experts, row_count),
                                                                GUARD(experts, balance),
                                                                GUARD(experts, dy),
                                                                GUARD(experts, dx),
                                                                GUARD(experts, d_router),
                                                                GUARD(experts, d_shared_gate)};
static const struct guard_field dropout_fields[GUARD_FIELDS] = {GUARD(dropout, x)};
static const struct guard_field noise_fields[GUARD_FIELDS] = {GUARD(noise, x)};
static const struct guard_field add_fields[GUARD_FIELDS] = {GUARD(add, x), GUARD(add, z), GUARD(add, y)};
static const struct guard_field softcap_fields[GUARD_FIELDS] = {GUARD(softcap, x)};
static const struct guard_field scale_fields[GUARD_FIELDS] = {GUARD(scale, x)};
static const struct guard_field cross_entropy_fields[GUARD_FIELDS] = {
    GUARD(cross_entropy, logits), GUARD(cross_entropy, targets), GUARD(cross_entropy, dlogits),
    GUARD(cross_entropy, loss), GUARD(cross_entropy, hit)};
static const struct guard_field attention_sums_fields[GUARD_FIELDS] = {
    GUARD(attention_sums, logits), GUARD(attention_sums, add),  GUARD(attention_sums, extra),
    GUARD(attention_sums, factor), GUARD(attention_sums, sink), GUARD(attention_sums, sums)};
static const struct guard_field adamw_fields[GUARD_FIELDS] = {GUARD(adamw, p), GUARD(adamw, g), GUARD(adamw, m),
                                                              GUARD(adamw, v)};
static const struct guard_field adagrad_fields[GUARD_FIELDS] = {GUARD(adagrad, p), GUARD(adagrad, g),
                                                                GUARD(adagrad, v)};
static const struct guard_field sumsq_fields[GUARD_FIELDS] = {GUARD(sumsq, x), GUARD(sumsq, out)};
static const struct guard_field mix_fields[GUARD_FIELDS] = {GUARD(mix, sumsq), GUARD(mix, x), GUARD(mix, y)};
static const struct guard_field clamp_fields[GUARD_FIELDS] = {GUARD(clamp, x)};
static const struct guard_field convert_fields[GUARD_FIELDS] = {GUARD(convert, x), GUARD(convert, y)};
static const struct guard_field gather_fields[GUARD_FIELDS] = {GUARD(gather, x), GUARD(gather, index),
                                                               GUARD(gather, y)};
static const struct guard_field sigmoid_fields[GUARD_FIELDS] = {GUARD(sigmoid, x), GUARD(sigmoid, dx),
                                                                GUARD(sigmoid, from), GUARD(sigmoid, to)};
static const struct guard_field silu_fields[GUARD_FIELDS] = {GUARD(silu, x), GUARD(silu, y), GUARD(silu, dy),
                                                             GUARD(silu, dx)};
static const struct guard_field loss_sums_fields[GUARD_FIELDS] = {GUARD(loss_sums, loss), GUARD(loss_sums, hit),
                                                                  GUARD(loss_sums, targets), GUARD(loss_sums, sums)};
static const struct guard_field span_sum_fields[GUARD_FIELDS] = {GUARD(span_sum, row_count), GUARD(span_sum, z),
                                                                 GUARD(span_sum, sum), GUARD(span_sum, dz)};
static const struct guard_field memory_loss_fields[GUARD_FIELDS] = {
    GUARD(memory_loss, doc_start), GUARD(memory_loss, count), GUARD(memory_loss, M), GUARD(memory_loss, sum)};
static const struct guard_field gate_share_fields[GUARD_FIELDS] = {
    GUARD(gate_share, doc_start), GUARD(gate_share, count), GUARD(gate_share, c),
    GUARD(gate_share, sum),       GUARD(gate_share, sums),  GUARD(gate_share, dc)};
static const struct guard_field adjust_fields[GUARD_FIELDS] = {
    GUARD(adjust, x),     GUARD(adjust, y),        GUARD(adjust, allowed), GUARD(adjust, seen),
    GUARD(adjust, times), GUARD(adjust, bias_ids), GUARD(adjust, bias)};
static const struct guard_field sample_fields[GUARD_FIELDS] = {GUARD(sample, drawn)};
static const struct guard_field sample_row_fields[GUARD_FIELDS] = {GUARD(sample_row, logits)};
static const struct guard_field evict_fields[GUARD_FIELDS] = {GUARD(evict, at),     GUARD(evict, values),
                                                              GUARD(evict, room),   GUARD(evict, index),
                                                              GUARD(evict, k.data), GUARD(evict, v.data)};
static const struct guard_field evictions_fields[GUARD_FIELDS] = {GUARD(evictions, note), GUARD(evictions, evicted_at),
                                                                  GUARD(evictions, left)};
#define GUARD_MAP(i)                                                                                                   \
  GUARD(attention, map[i].theta), GUARD(attention, map[i].dtheta), GUARD(attention, map[i].key),                       \
      GUARD(attention, map[i].dkey)
static const struct guard_field attention_fields[GUARD_FIELDS] = {GUARD(attention, q),
                                                                  GUARD(attention, k),
                                                                  GUARD(attention, v),
                                                                  GUARD(attention, y),
                                                                  GUARD(attention, key_count),
                                                                  GUARD(attention, doc_start),
                                                                  GUARD(attention, lse),
                                                                  GUARD(attention, slots.evicted_at),
                                                                  GUARD(attention, slots.at),
                                                                  GUARD(attention, slots.sums),
                                                                  GUARD(attention, sel.sq),
                                                                  GUARD(attention, sel.sk),
                                                                  GUARD(attention, sel.strength),
                                                                  GUARD(attention, sel.dstrength),
                                                                  GUARD(attention, sel.f_in),
                                                                  GUARD(attention, sel.f_out),
                                                                  GUARD(attention, sel.F),
                                                                  GUARD(attention, sel.M),
                                                                  GUARD(attention, sel.dM),
                                                                  GUARD(attention, span.z),
                                                                  GUARD(attention, span.dz),
                                                                  GUARD(attention, relative.p),
                                                                  GUARD(attention, relative.dp),
                                                                  GUARD_MAP(0),
                                                                  GUARD_MAP(1),
                                                                  GUARD_MAP(2),
                                                                  GUARD_MAP(3),
                                                                  GUARD_MAP(4),
                                                                  GUARD_MAP(5),
                                                                  GUARD(attention, sinks.k),
                                                                  GUARD(attention, sinks.v),
                                                                  GUARD(attention, sinks.dk),
                                                                  GUARD(attention, sinks.dv),
                                                                  GUARD(attention, threshold.control),
                                                                  GUARD(attention, threshold.count),
                                                                  GUARD(attention, threshold.cut),
                                                                  GUARD(attention, exclusive.gate),
                                                                  GUARD(attention, exclusive.dgate),
                                                                  GUARD(attention, exclusive.dot),
                                                                  GUARD(attention, gate.g),
                                                                  GUARD(attention, gate.dg),
                                                                  GUARD(attention, gate.ungated),
                                                                  GUARD(attention, dy),
                                                                  GUARD(attention, dq),
                                                                  GUARD(attention, dk),
                                                                  GUARD(attention, dv),
                                                                  GUARD(attention, dsq),
                                                                  GUARD(attention, dsk)};

static wn_status guard_arrays(wn_context *ctx, const char *op, const struct guard_field *fields, void *args) {
  for (const struct guard_field *f = fields; f < fields + GUARD_FIELDS && f->name; f++) {
    void *shown, *real;
    memcpy(&shown, (char *)args + f->at, sizeof shown);
    WN_TRY(wn_guard_find(ctx, op, f->name, shown, 0, &real));
    memcpy((char *)args + f->at, &real, sizeof real);
  }
  return WN_OK;
}

/* Arguments of an operation that are not plain arrays. */
struct guard_room {
  struct wn_expert expert[WN_EXPERTS_MAX];
  struct wn_packed packed[2 * WN_EXPERTS_MAX + 2];
  struct wn_evict_slots slots[WN_EVICT_ARRAYS];
  struct wn_attention attention;
};

/* Replaces *packed (rows of K weights) by `own`, with parts at their real addresses. */
static wn_status guard_packed(const struct wn_exec *exec, const char *op, int64_t K, const struct wn_packed **packed,
                              struct wn_packed *own) {
  if (!*packed) return WN_OK;
  *own = **packed;
  for (int i = 0; i < own->count; i++) {
    struct wn_packed_part *part = &own->part[i];
    void *real;
    WN_TRY(wn_guard_find(exec->ctx, op, "packed weights", part->data, wn_packed_part_bytes(part, K), &real));
    part->data = real;
  }
  *packed = own;
  return WN_OK;
}

#define GUARD_NO_ROOM(name)                                                                                            \
  static wn_status name##_room(const struct wn_exec *exec, struct wn_##name *a, struct guard_room *room) {             \
    (void)exec, (void)a, (void)room;                                                                                   \
    return WN_OK;                                                                                                      \
  }
GUARD_NO_ROOM(norm)
GUARD_NO_ROOM(rope)
GUARD_NO_ROOM(act)
GUARD_NO_ROOM(dropout)
GUARD_NO_ROOM(noise)
GUARD_NO_ROOM(add)
GUARD_NO_ROOM(softcap)
GUARD_NO_ROOM(scale)
GUARD_NO_ROOM(cross_entropy)
GUARD_NO_ROOM(attention_sums)
GUARD_NO_ROOM(adamw)
GUARD_NO_ROOM(adagrad)
GUARD_NO_ROOM(sumsq)
GUARD_NO_ROOM(mix)
GUARD_NO_ROOM(clamp)
GUARD_NO_ROOM(convert)
GUARD_NO_ROOM(gather)
GUARD_NO_ROOM(sigmoid)
GUARD_NO_ROOM(silu)
GUARD_NO_ROOM(loss_sums)
GUARD_NO_ROOM(span_sum)
GUARD_NO_ROOM(memory_loss)
GUARD_NO_ROOM(gate_share)
GUARD_NO_ROOM(adjust)
GUARD_NO_ROOM(attention)
static wn_status linear_room(const struct wn_exec *exec, struct wn_linear *a, struct guard_room *room) {
  return guard_packed(exec, "linear", a->K, &a->packed, room->packed);
}
static wn_status embedding_room(const struct wn_exec *exec, struct wn_embedding *a, struct guard_room *room) {
  return guard_packed(exec, "embedding", a->C, &a->packed, room->packed);
}
static wn_status experts_room(const struct wn_exec *exec, struct wn_experts *a, struct guard_room *room) {
  struct wn_packed *packed = room->packed;
  for (int64_t e = 0; e < a->E; e++) {
    struct wn_expert *expert = &room->expert[e];
    *expert = a->expert[e];
    WN_TRY(guard_packed(exec, "experts", a->C, &expert->packed_in, packed++));
    WN_TRY(guard_packed(exec, "experts", a->F, &expert->packed_out, packed++));
    WN_TRY(guard_arrays(exec->ctx, "expert", expert_fields, expert));
  }
  a->expert = room->expert;
  WN_TRY(guard_packed(exec, "experts", a->C, &a->shared.packed_in, packed++));
  return guard_packed(exec, "experts", a->S, &a->shared.packed_out, packed);
}

static wn_status sample_room(const struct wn_exec *exec, struct wn_sample *a, struct guard_room *room) {
  (void)room;
  for (int64_t r = 0; r < a->rows; r++) WN_TRY(guard_arrays(exec->ctx, "sample", sample_row_fields, &a->row[r]));
  return WN_OK;
}

static wn_status evict_room(const struct wn_exec *exec, struct wn_evict *a, struct guard_room *room) {
  for (int i = 0; i < a->count; i++) {
    struct wn_evict_slots *own = &room->slots[i];
    *own = a->slots[i];
    const size_t bytes = (size_t)(a->B * a->P * own->rows * a->capacity) * own->bytes;
    WN_TRY(wn_guard_find(exec->ctx, "evict", "slots", own->data, bytes, &own->data));
  }
  a->slots = room->slots;
  return WN_OK;
}

static wn_status evictions_room(const struct wn_exec *exec, struct wn_evictions *a, struct guard_room *room) {
  room->attention = *a->a;
  a->a = &room->attention;
  return guard_arrays(exec->ctx, "evictions", attention_fields, &room->attention);
}

static struct wn_exec guard_exec(const struct wn_exec *exec) {
  struct wn_exec own = *exec;
  own.backend = wn_backend_ref();
  return own;
}

#define GUARD_DIRECTION(name, args, direction)                                                                         \
  static wn_status guard_##name##_##direction(const struct wn_exec *exec, const args *a) {                             \
    struct wn_exec own_exec = guard_exec(exec);                                                                        \
    args own = *a;                                                                                                     \
    struct guard_room room;                                                                                            \
    WN_TRY(guard_arrays(exec->ctx, #name, name##_fields, &own));                                                       \
    WN_TRY(name##_room(exec, &own, &room));                                                                            \
    WN_TRY(wn_guard_find(exec->ctx, #name, "scratch", exec->scratch, exec->scratch_bytes, &own_exec.scratch));         \
    return own_exec.backend->name##_##direction(&own_exec, &own);                                                      \
  }
#define GUARD_SLOTS(name, args, has_backward)                                                                          \
  GUARD_DIRECTION(name, args, forward)                                                                                 \
  GUARD_DIRECTION(name, args, backward)                                                                                \
  static size_t guard_##name##_scratch(const struct wn_exec *exec, const args *a, bool backward) {                     \
    const struct wn_exec own = guard_exec(exec);                                                                       \
    return own.backend->name##_scratch(&own, a, backward);                                                             \
  }
WN_OPS(GUARD_SLOTS)

static struct wn_backend table;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void table_fill(void) {
  table = *wn_backend_ref();
  table.name = "guard";
  table.memory = &wn_guard_memory;
  table.attention_served.forward &= ~(uint32_t)WN_TERM_LOOK; /* a look runs host code, which cannot read this memory */
  table.attention_served.row &= ~(uint32_t)WN_TERM_LOOK;
#define GUARD_FILL(name, args, has_backward)                                                                           \
  if (table.name##_forward) table.name##_forward = guard_##name##_forward;                                             \
  if (table.name##_backward) table.name##_backward = guard_##name##_backward;                                          \
  if (table.name##_scratch) table.name##_scratch = guard_##name##_scratch;
  WN_OPS(GUARD_FILL)
}

const struct wn_backend *wn_backend_guard_for(enum wn_isa isa) {
  (void)isa;
  pthread_once(&once, table_fill);
  return &table;
}
