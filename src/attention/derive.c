/* Views of an attention call (derive.h). First the table of fields. A view says which sequences, rows, keys and heads
 * it has; the pointer of each array then moves along the array's axes. Cost: one pass per view over the table, some
 * ninety rows. */
#include "attention/derive.h"

#include <string.h>

#define CALL_SIZE(field) sizeof(((struct wn_attention *)0)->field)
#define CALL_AT(field) offsetof(struct wn_attention, field)
#define NUMBER(field, scope)                                                                                           \
  { #field, CALL_AT(field), CALL_SIZE(field), scope, WN_CALL_NUMBER, "", 0 }
#define ARRAY(field, scope, element, axes)                                                                             \
  { #field, CALL_AT(field), CALL_SIZE(field), scope, element, axes, 0 }
#define STRIDED(field, scope, element, axes, strides)                                                                  \
  { #field, CALL_AT(field), CALL_SIZE(field), scope, element, axes, CALL_AT(strides) }

/* Heads of the parameters are counted by head0 and head_step. */
#define MAP(i)                                                                                                         \
  NUMBER(map[i].kind, WN_CALL_SELECTION), NUMBER(map[i].number, WN_CALL_SELECTION),                                    \
      NUMBER(map[i].idle, WN_CALL_SELECTION), NUMBER(map[i].n, WN_CALL_SELECTION),                                     \
      NUMBER(map[i].stride, WN_CALL_SELECTION), ARRAY(map[i].theta, WN_CALL_SELECTION, WN_CALL_REAL, ""),              \
      ARRAY(map[i].dtheta, WN_CALL_TRAINING, WN_CALL_REAL, ""),                                                        \
      STRIDED(map[i].key, WN_CALL_SELECTION, WN_CALL_REAL, "BKV", map[i].s_key),                                       \
      NUMBER(map[i].s_key, WN_CALL_SELECTION), NUMBER(map[i].gates, WN_CALL_SELECTION),                                \
      NUMBER(map[i].s_gate, WN_CALL_SELECTION),                                                                        \
      STRIDED(map[i].dkey, WN_CALL_TRAINING, WN_CALL_REAL, "BKV", map[i].s_key)
_Static_assert(WN_SCORE_MAPS_MAX == 6, "as in the table");

static const struct wn_call_field call_fields[] = {
    NUMBER(B, WN_CALL_SHAPE),
    NUMBER(Tq, WN_CALL_SHAPE),
    NUMBER(Tk, WN_CALL_SHAPE),
    NUMBER(H, WN_CALL_SHAPE),
    NUMBER(Hkv, WN_CALL_SHAPE),
    NUMBER(D, WN_CALL_SHAPE),
    NUMBER(head0, WN_CALL_SHAPE),
    NUMBER(head_step, WN_CALL_SHAPE),
    NUMBER(scale, WN_CALL_SHAPE),
    NUMBER(row_type, WN_CALL_SHAPE),
    NUMBER(rounds, WN_CALL_SHAPE),
    STRIDED(q, WN_CALL_SHAPE, WN_CALL_ROW, "BRHD", s_q),
    NUMBER(s_q, WN_CALL_SHAPE),
    STRIDED(k, WN_CALL_SHAPE, WN_CALL_KEY, "BKVD", s_k),
    STRIDED(v, WN_CALL_SHAPE, WN_CALL_VALUE, "BKVD", s_v),
    NUMBER(s_k, WN_CALL_SHAPE),
    NUMBER(s_v, WN_CALL_SHAPE),
    NUMBER(k_type, WN_CALL_SHAPE),
    NUMBER(v_type, WN_CALL_SHAPE),
    STRIDED(y, WN_CALL_SHAPE, WN_CALL_ROW, "BRHD", s_y),
    NUMBER(s_y, WN_CALL_SHAPE),
    NUMBER(open, WN_CALL_SHAPE),
    ARRAY(key_count, WN_CALL_SHAPE, WN_CALL_INT32, "B"),
    ARRAY(doc_start, WN_CALL_SHAPE, WN_CALL_INT32, "BK"),
    ARRAY(lse, WN_CALL_TRAINING, WN_CALL_REAL, "BHR"),

    NUMBER(window, WN_CALL_WEIGHTS),
    NUMBER(strided, WN_CALL_WEIGHTS),
    NUMBER(root.on, WN_CALL_WEIGHTS),
    NUMBER(root.buffer, WN_CALL_WEIGHTS),
    NUMBER(root.density, WN_CALL_WEIGHTS),

    NUMBER(slots.groups, WN_CALL_SHAPE),
    ARRAY(slots.evicted_at, WN_CALL_WEIGHTS, WN_CALL_INT32, "BPC"),
    ARRAY(slots.at, WN_CALL_SHAPE, WN_CALL_INT32, "BPC"),
    NUMBER(slots.stride, WN_CALL_SHAPE),
    ARRAY(slots.sums, WN_CALL_WEIGHTS, WN_CALL_REAL, "BPC"),

    NUMBER(sel.on, WN_CALL_SELECTION),
    NUMBER(sel.relu, WN_CALL_SELECTION),
    NUMBER(sel.protect_first, WN_CALL_SELECTION),
    NUMBER(sel.protect_self, WN_CALL_SELECTION),
    NUMBER(sel.shift, WN_CALL_SELECTION),
    NUMBER(sel.bilinear, WN_CALL_SELECTION),
    NUMBER(sel.groups, WN_CALL_SELECTION),
    NUMBER(sel.head, WN_CALL_SELECTION),
    STRIDED(sel.sq, WN_CALL_SELECTION, WN_CALL_REAL, "BRSD", sel.s_sq),
    STRIDED(sel.sk, WN_CALL_SELECTION, WN_CALL_REAL, "BKSD", sel.s_sk),
    NUMBER(sel.s_sq, WN_CALL_SELECTION),
    NUMBER(sel.s_sk, WN_CALL_SELECTION),
    ARRAY(sel.strength, WN_CALL_SELECTION, WN_CALL_REAL, "S"),
    ARRAY(sel.dstrength, WN_CALL_TRAINING, WN_CALL_REAL, "S"),
    ARRAY(sel.f_in, WN_CALL_SELECTION, WN_CALL_REAL, "BSF"),
    ARRAY(sel.f_out, WN_CALL_SELECTION, WN_CALL_REAL, "BSF"),
    NUMBER(sel.f_stride, WN_CALL_SELECTION),
    ARRAY(sel.F, WN_CALL_TRAINING, WN_CALL_REAL, "BSRK"),
    NUMBER(sel.mem, WN_CALL_TRAINING),
    NUMBER(sel.mem_tau, WN_CALL_TRAINING),
    NUMBER(sel.dead_share, WN_CALL_SELECTION),
    ARRAY(sel.M, WN_CALL_TRAINING, WN_CALL_REAL, "BSR"),
    ARRAY(sel.dM, WN_CALL_TRAINING, WN_CALL_REAL, "BSR"),

    NUMBER(span.on, WN_CALL_WEIGHTS),
    NUMBER(span.dynamic, WN_CALL_WEIGHTS),
    NUMBER(span.exclude_self, WN_CALL_WEIGHTS),
    NUMBER(span.limit, WN_CALL_WEIGHTS),
    NUMBER(span.ramp, WN_CALL_WEIGHTS),
    STRIDED(span.z, WN_CALL_WEIGHTS, WN_CALL_REAL, "brH", span.s_z),
    NUMBER(span.s_z, WN_CALL_WEIGHTS),
    STRIDED(span.dz, WN_CALL_TRAINING, WN_CALL_REAL, "brH", span.s_z),

    NUMBER(relative.P, WN_CALL_SELECTION),
    ARRAY(relative.p, WN_CALL_SELECTION, WN_CALL_REAL, ""),
    ARRAY(relative.dp, WN_CALL_TRAINING, WN_CALL_REAL, ""),

    NUMBER(maps, WN_CALL_SELECTION),
    MAP(0),
    MAP(1),
    MAP(2),
    MAP(3),
    MAP(4),
    MAP(5),

    NUMBER(sinks.n, WN_CALL_WEIGHTS),
    ARRAY(sinks.k, WN_CALL_WEIGHTS, WN_CALL_REAL, "VND"),
    ARRAY(sinks.v, WN_CALL_WEIGHTS, WN_CALL_REAL, "VND"),
    ARRAY(sinks.dk, WN_CALL_TRAINING, WN_CALL_REAL, "VND"),
    ARRAY(sinks.dv, WN_CALL_TRAINING, WN_CALL_REAL, "VND"),

    NUMBER(threshold.on, WN_CALL_WEIGHTS),
    NUMBER(threshold.tau, WN_CALL_WEIGHTS),
    ARRAY(threshold.control, WN_CALL_WEIGHTS, WN_CALL_UINT8, "Bpc"),
    ARRAY(threshold.count, WN_CALL_TRAINING, WN_CALL_INT32, "BHR"),
    ARRAY(threshold.cut, WN_CALL_TRAINING, WN_CALL_DOUBLE, "BHR2"),

    NUMBER(look.n, WN_CALL_TRAINING),
    ARRAY(look.tau, WN_CALL_TRAINING, WN_CALL_DOUBLE, ""),
    ARRAY(look.control, WN_CALL_TRAINING, WN_CALL_UINT8, "BK"),
    ARRAY(look.count, WN_CALL_TRAINING, WN_CALL_INT32, "BHRX"),
    ARRAY(look.rows, WN_CALL_TRAINING, WN_CALL_OTHER, ""),
    ARRAY(look.user, WN_CALL_TRAINING, WN_CALL_OTHER, ""),

    NUMBER(dropout.p, WN_CALL_TRAINING),
    NUMBER(dropout.seed, WN_CALL_TRAINING),
    NUMBER(dropout.stream, WN_CALL_TRAINING),

    NUMBER(exclusive.on, WN_CALL_OUTPUT),
    ARRAY(exclusive.gate, WN_CALL_OUTPUT, WN_CALL_REAL, "H"),
    ARRAY(exclusive.dgate, WN_CALL_TRAINING, WN_CALL_REAL, "H"),
    ARRAY(exclusive.dot, WN_CALL_TRAINING, WN_CALL_REAL, "BHR"),

    NUMBER(gate.on, WN_CALL_OUTPUT),
    NUMBER(gate.elementwise, WN_CALL_OUTPUT),
    STRIDED(gate.g, WN_CALL_OUTPUT, WN_CALL_REAL, "BRHG", gate.s_g),
    NUMBER(gate.s_g, WN_CALL_OUTPUT),
    STRIDED(gate.dg, WN_CALL_TRAINING, WN_CALL_REAL, "BRHG", gate.s_g),
    ARRAY(gate.ungated, WN_CALL_TRAINING, WN_CALL_REAL, "BRHD"),

    STRIDED(dy, WN_CALL_TRAINING, WN_CALL_ROW, "BRHD", s_y),
    STRIDED(dq, WN_CALL_TRAINING, WN_CALL_ROW, "BRHD", s_q),
    STRIDED(dk, WN_CALL_TRAINING, WN_CALL_ROW, "BKVD", s_k),
    STRIDED(dv, WN_CALL_TRAINING, WN_CALL_ROW, "BKVD", s_v),
    STRIDED(dsq, WN_CALL_TRAINING, WN_CALL_REAL, "BRSD", sel.s_sq),
    STRIDED(dsk, WN_CALL_TRAINING, WN_CALL_REAL, "BKSD", sel.s_sk),
    NUMBER(dk_from, WN_CALL_TRAINING),
};

int wn_call_field_count(void) {
  return (int)(sizeof call_fields / sizeof *call_fields);
}

const struct wn_call_field *wn_call_field_at(int i) {
  return i >= 0 && i < wn_call_field_count() ? &call_fields[i] : NULL;
}

/* The first sequence, row, key and head of a view, and how many of each it has. */
struct call_part {
  int64_t b, sequences, row, rows, key, keys, head, heads; /* heads: key-value heads */
};

static struct call_part call_whole(const struct wn_attention *a) {
  return (struct call_part){.sequences = a->B, .rows = a->Tq, .keys = a->Tk, .heads = a->Hkv};
}

/* Elements along an axis. b and r: B and R of dynamic spans, else 1. p and c: P and C where control tokens are given by
 * cache position, else 1 and the number of keys. */
static int64_t call_extent(const struct wn_attention *a, char axis) {
  switch (axis) {
  case 'B':
    return a->B;
  case 'b':
    return a->span.dynamic ? a->B : 1;
  case 'R':
    return a->Tq;
  case 'r':
    return a->span.dynamic ? a->Tq : 1;
  case 'K':
    return a->Tk;
  case 'H':
    return a->H;
  case 'V':
    return a->Hkv;
  case 'S':
    return wn_selection_groups(a);
  case 'P':
    return wn_slot_groups(a);
  case 'p':
    return a->slots.at ? wn_slot_groups(a) : 1;
  case 'C':
    return wn_slot_stride(a);
  case 'c':
    return a->slots.at ? wn_slot_stride(a) : a->Tk;
  case 'F':
    return wn_selection_stride(a);
  case 'N':
    return a->sinks.n;
  case 'D':
    return a->D;
  case 'G':
    return a->gate.elementwise ? a->D : 1;
  case 'X':
    return a->look.n;
  default:
    return axis - '0';
  }
}

/* Where a part begins along an axis. */
static int64_t call_begin(const struct wn_attention *a, const struct call_part *part, char axis) {
  switch (axis) {
  case 'B':
    return part->b;
  case 'b':
    return a->span.dynamic ? part->b : 0;
  case 'R':
    return part->row;
  case 'r':
    return a->span.dynamic ? part->row : 0;
  case 'K':
  case 'C':
  case 'c':
  case 'F':
    return part->key;
  case 'H':
    return part->head * (a->H / a->Hkv);
  case 'V':
    return part->head;
  case 'S':
    return wn_selection_groups(a) > 1 ? part->head : 0;
  case 'P':
  case 'p':
    return call_extent(a, axis) > 1 ? part->head : 0;
  default:
    return 0;
  }
}

enum { CALL_AXES = 4 };

/* The axes of an array: how many entries each has, and the distance from one entry to the next, in elements. */
struct call_axes {
  int n;
  int64_t extent[CALL_AXES], step[CALL_AXES];
};

static struct call_axes call_axes_of(const struct wn_attention *a, const struct wn_call_field *field) {
  struct call_axes to = {.n = (int)strlen(field->axes)};
  int64_t step = 1;
  for (int i = to.n - 1; i >= 0; i--) {
    to.extent[i] = call_extent(a, field->axes[i]);
    to.step[i] = step;
    step *= to.extent[i];
  }
  if (!field->strides) return to;
  struct wn_stride s;
  memcpy(&s, (const char *)a + field->strides, sizeof s);
  to.step[0] = s.b, to.step[1] = s.t, to.step[2] = s.h;
  return to;
}

/* The offset of the part in an array, in elements. */
static int64_t call_offset(const struct wn_attention *a, const struct wn_call_field *field,
                           const struct call_part *part) {
  const struct call_axes axes = call_axes_of(a, field);
  int64_t offset = 0;
  for (int i = 0; i < axes.n; i++) {
    const int64_t begin = call_begin(a, part, field->axes[i]);
    if (begin) offset += begin * axes.step[i]; /* the stride of an axis that is not there may be anything */
  }
  return offset;
}

size_t wn_call_bytes(const struct wn_attention *a, enum wn_call_element element, wn_dtype dtype, int64_t n) {
  const size_t row = a->row_type == WN_BF16 ? sizeof(uint16_t) : wn_dtype_size(dtype), all = (size_t)n;
  const wn_gguf_type type = element == WN_CALL_KEY ? a->k_type : element == WN_CALL_VALUE ? a->v_type : WN_GGUF_F32;
  switch (element) {
  case WN_CALL_REAL:
    return all * wn_dtype_size(dtype);
  case WN_CALL_ROW:
  case WN_CALL_KEY:
  case WN_CALL_VALUE:
    return type ? wn_stored_bytes(type, dtype, n) : all * row;
  case WN_CALL_INT32:
    return all * sizeof(int32_t);
  case WN_CALL_DOUBLE:
    return all * sizeof(double);
  case WN_CALL_NUMBER:
  case WN_CALL_OTHER:
  case WN_CALL_UINT8:
    break;
  }
  return all;
}

/* The call without the fields whose scope comes after `most`. */
static struct wn_attention call_drop(const struct wn_attention *op, enum wn_call_scope most) {
  struct wn_attention a = *op;
  for (int i = 0; i < wn_call_field_count(); i++)
    if (call_fields[i].scope > most) memset((char *)&a + call_fields[i].at, 0, call_fields[i].size);
  return a;
}

/* A view with fewer rows keeps the strides that follow from the whole call's sizes. */
static void call_keep_steps(const struct wn_attention *op, const struct call_part *part, struct wn_attention *a) {
  const int64_t G = wn_selection_groups(op), P = wn_slot_groups(op);
  if (op->sel.f_in || op->sel.f_out) a->sel.f_stride = wn_selection_stride(op);
  if (op->slots.evicted_at || op->slots.at || op->slots.sums) a->slots.stride = wn_slot_stride(op);
  /* A sequence's rows stay as far apart as in the whole call. */
  if (P > 1) a->slots.groups = part->heads, a->slots.stride = wn_slot_stride(op) * (P / part->heads);
  if (op->sel.on && G > 1) a->sel.groups = part->heads, a->sel.f_stride = wn_selection_stride(op) * (G / part->heads);
  /* Documents and control tokens have no stride of their own. */
  const bool by_key = op->doc_start || (op->threshold.control && !op->slots.at);
  if (by_key && part->keys != op->Tk && part->sequences > 1) a->B = 0;
}

static struct wn_attention call_of(const struct wn_attention *op, wn_dtype dtype, const struct call_part *part) {
  const int64_t share = op->H / op->Hkv;
  struct wn_attention a = call_drop(op, WN_CALL_OUTPUT);
  for (int i = 0; i < wn_call_field_count(); i++) {
    const struct wn_call_field *field = &call_fields[i];
    char *array;
    if (field->scope == WN_CALL_TRAINING || !field->axes[0]) continue;
    memcpy(&array, (const char *)&a + field->at, sizeof array);
    if (!array) continue;
    array += wn_call_bytes(op, field->element, dtype, call_offset(op, field, part));
    memcpy((char *)&a + field->at, &array, sizeof array);
  }
  a.B = part->sequences;
  a.Tq = part->rows;
  a.Tk = part->keys;
  a.H = part->heads * share;
  a.Hkv = part->heads;
  a.head0 = wn_model_head(op, part->head * share);
  call_keep_steps(op, part, &a);
  return a;
}

struct wn_attention wn_attention_forward_only(const struct wn_attention *op) {
  return call_drop(op, WN_CALL_OUTPUT);
}

struct wn_attention wn_attention_weights_only(const struct wn_attention *op) {
  return call_drop(op, WN_CALL_WEIGHTS);
}

struct wn_attention wn_attention_of_sequence(const struct wn_attention *op, wn_dtype dtype, int64_t b) {
  struct call_part part = call_whole(op);
  part.b = b, part.sequences = 1;
  return call_of(op, dtype, &part);
}

struct wn_attention wn_attention_of_rows(const struct wn_attention *op, wn_dtype dtype, int64_t r, int64_t n) {
  struct call_part part = call_whole(op);
  part.row = r, part.rows = n;
  if (!op->open) part.keys = op->Tk - op->Tq + r + n;
  return call_of(op, dtype, &part);
}

struct wn_attention wn_attention_of_tokens(const struct wn_attention *op, wn_dtype dtype, int64_t t, int64_t n) {
  struct call_part part = call_whole(op);
  part.row = part.key = t, part.rows = part.keys = n;
  return call_of(op, dtype, &part);
}

struct wn_attention wn_attention_of_heads(const struct wn_attention *op, wn_dtype dtype, int64_t g, int64_t n) {
  struct call_part part = call_whole(op);
  part.head = g, part.heads = n;
  return call_of(op, dtype, &part);
}

struct wn_attention wn_attention_selection_only(const struct wn_attention *op, wn_dtype dtype) {
  const int64_t G = wn_selection_groups(op), apart = op->H / G, kv_head = op->sel.head / (op->H / op->Hkv);
  struct wn_attention a = call_drop(op, WN_CALL_SELECTION);
  const struct call_part first = {.head = G == 1 ? kv_head : 0};
  a.H = a.Hkv = G;
  if (op->q) a.q = (const char *)op->q + wn_call_bytes(op, WN_CALL_ROW, dtype, op->sel.head * op->s_q.h);
  a.s_q.h = apart * op->s_q.h;
  if (op->k) a.k = (const char *)op->k + wn_call_bytes(op, WN_CALL_KEY, dtype, first.head * op->s_k.h);
  if (op->v) a.v = (const char *)op->v + wn_call_bytes(op, WN_CALL_VALUE, dtype, first.head * op->s_v.h);
  for (int64_t i = 0; i < a.maps; i++) { /* the key's number that a selecting head reads */
    const int64_t h = first.head * (op->H / op->Hkv) + op->sel.head % (op->H / op->Hkv);
    const int64_t from = wn_score_number(&op->map[i], 0, h, op->H / op->Hkv);
    if (!a.map[i].key) continue;
    a.map[i].key = (const char *)a.map[i].key + wn_call_bytes(op, WN_CALL_REAL, dtype, from);
    a.map[i].gates = 1;
  }
  a.head0 = wn_model_head(op, op->sel.head);
  a.head_step = apart * (op->head_step > 0 ? op->head_step : 1);
  a.sel.head = 0;
  if (!op->slots.at) a.slots.groups = 0;
  return a;
}

/* Which of an array's axes is the rows; -1: none. */
static int call_row_axis(const struct wn_attention *a, const struct wn_call_field *field) {
  const char *at = strchr(field->axes, a->span.dynamic && strchr(field->axes, 'r') ? 'r' : 'R');
  return at ? (int)(at - field->axes) : -1;
}

/* Copies an array of a call into the last `from.extent[rows]` rows of a contiguous one; the rows before them stay. */
static void call_copy_rows(const struct call_axes *from, const char *source, const struct call_axes *to, char *target,
                           int rows, size_t element) {
  int64_t at[CALL_AXES] = {0};
  const int inner = from->n - 1;
  target += (to->extent[rows] - from->extent[rows]) * to->step[rows] * (int64_t)element;
  for (int i = 0; i >= 0;) {
    int64_t read = 0, write = 0;
    for (i = 0; i < inner; i++) read += at[i] * from->step[i], write += at[i] * to->step[i];
    if (from->step[inner] == 1)
      memcpy(target + write * (int64_t)element, source + read * (int64_t)element,
             (size_t)from->extent[inner] * element);
    else
      for (int64_t n = 0; n < from->extent[inner]; n++)
        memcpy(target + (write + n) * (int64_t)element, source + (read + n * from->step[inner]) * (int64_t)element,
               element);
    for (i = inner - 1; i >= 0 && ++at[i] == from->extent[i]; i--) at[i] = 0;
  }
}

struct wn_attention wn_attention_with_rows_before(const struct wn_attention *op, wn_dtype dtype, int64_t n,
                                                  struct wn_arrays *arrays) {
  struct wn_attention a = call_drop(op, WN_CALL_OUTPUT);
  a.Tq += n;
  for (int i = 0; i < wn_call_field_count(); i++) {
    const struct wn_call_field *field = &call_fields[i];
    const int rows = call_row_axis(op, field);
    void *source, *target;
    memcpy(&source, (const char *)&a + field->at, sizeof source);
    if (rows < 0 || !source) continue;
    const struct wn_call_field contiguous = {.axes = field->axes};
    const struct call_axes from = call_axes_of(op, field), to = call_axes_of(&a, &contiguous);
    const size_t element = wn_call_bytes(op, field->element, dtype, 1);
    const struct wn_array row = WN_ARRAY_SIZED(target, element, field->name, true, WN_DIMS(to.extent[0] * to.step[0]));
    wn_arrays_lay(arrays, &row, 1);
    if (target) {
      memset(target, 0, (size_t)row.dims.size[0] * element);
      call_copy_rows(&from, source, &to, target, rows, element);
      memcpy((char *)&a + field->at, &target, sizeof target);
    }
    const struct wn_stride s = {to.step[0], to.step[1], to.step[2]};
    if (field->strides) memcpy((char *)&a + field->strides, &s, sizeof s);
  }
  return a;
}

int64_t wn_call_field_span(const struct wn_attention *a, const struct wn_call_field *field) {
  if (field->element == WN_CALL_NUMBER || field->element == WN_CALL_OTHER) return 0;
  if (field->at == CALL_AT(relative.p) || field->at == CALL_AT(relative.dp)) return a->relative.P * a->D;
  for (const struct wn_score_map *map = a->map; map < a->map + WN_SCORE_MAPS_MAX; map++) {
    const char *at = (const char *)a + field->at;
    if (at == (const char *)&map->theta || at == (const char *)&map->dtheta) return map->n * map->stride;
  }
  if (field->at == CALL_AT(look.tau)) return a->look.n;
  const struct call_axes axes = call_axes_of(a, field);
  int64_t last = 0;
  for (const struct wn_score_map *map = a->map; map < a->map + WN_SCORE_MAPS_MAX; map++) {
    const char *at = (const char *)a + field->at;
    const bool numbers = at == (const char *)&map->key || at == (const char *)&map->dkey;
    if (numbers && map->gates > 1) last = (map->gates - 1) * map->s_gate;
  }
  for (int i = 0; i < axes.n; i++) {
    if (axes.extent[i] == 0) return 0;
    if (axes.extent[i] > 1) last += (axes.extent[i] - 1) * axes.step[i];
  }
  return last + 1;
}
