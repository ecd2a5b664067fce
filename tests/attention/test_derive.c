/* Views of an attention call: every field of the struct has an entry in the table, and a view computes exactly what the
 * whole call does. */
#include "mechanisms.h"

#include "attention/derive.h"

/* Bytes that no entry accounts for must be padding: less than a pointer's size wherever a pointer could be. */
static void every_field_has_a_row(void **state) {
  (void)state;
  unsigned char covered[sizeof(struct wn_attention)] = {0};
  for (int i = 0; i < wn_call_field_count(); i++) {
    const struct wn_call_field *field = wn_call_field_at(i);
    assert_true(field->size > 0 && field->at + field->size <= sizeof covered);
    for (size_t n = 0; n < field->size; n++) {
      if (covered[field->at + n]) fail_msg("%s lies over another row's bytes", field->name);
      covered[field->at + n] = 1;
    }
    if (field->element == WN_CALL_NUMBER)
      assert_string_equal(field->axes, "");
    else
      assert_int_equal(field->size, sizeof(void *));
  }
  for (size_t at = 0; at < sizeof covered; at += sizeof(void *)) {
    size_t bytes = 0;
    for (size_t n = 0; n < sizeof(void *); n++) bytes += covered[at + n];
    if (bytes == 0) fail_msg("bytes %zu to %zu of struct wn_attention have no row", at, at + sizeof(void *) - 1);
  }
}

/* A view of a given scope drops the fields of later scopes and no others. */
static void scopes(void **state) {
  (void)state;
  struct wn_attention full, none;
  memset(&full, 0x01, sizeof full);
  memset(&none, 0, sizeof none);
  full.k_type = full.v_type = WN_GGUF_F32;
  const struct {
    struct wn_attention view;
    enum wn_call_scope most;
  } views[] = {{wn_attention_forward_only(&full), WN_CALL_OUTPUT}, {wn_attention_weights_only(&full), WN_CALL_WEIGHTS}};
  for (size_t v = 0; v < sizeof views / sizeof *views; v++)
    for (int i = 0; i < wn_call_field_count(); i++) {
      const struct wn_call_field *field = wn_call_field_at(i);
      const struct wn_attention *expected = field->scope > views[v].most ? &none : &full;
      if (memcmp((const char *)&views[v].view + field->at, (const char *)expected + field->at, field->size) != 0)
        fail_msg("view %zu: %s is %s", v, field->name, expected == &none ? "kept" : "changed");
    }
}

enum { B = 2, T = 70, H = 4, HKV = 2, D = 8 };

static struct mech_setup setup_of(const struct mech_case *c, int kind) {
  return (struct mech_setup){.c = c,
                             .B = B,
                             .Tq = T,
                             .Tk = T,
                             .H = H,
                             .Hkv = HKV,
                             .D = D,
                             .heads_first = kind % 2 == 0,
                             .documents = kind == 1,
                             .control = kind == 2,
                             .evicts = kind == 3 ? 1 : 0,
                             .bf16 = kind == 4,
                             .seed = (uint64_t)(40 + c->number)};
}

static struct mech_place place;

static void forward(const struct mech_bench *m, const struct wn_attention *op) {
  const wn_status status = mech_op(&place, m, op, false);
  if (status != WN_OK) fail_msg("%s: %s", mech_name(m), wn_context_error(place.ctx));
}

/* Compares what a view wrote with y of the whole call. */
static void check_view(const struct mech_bench *m, const char *what, struct wn_attention view, int64_t b, int64_t r,
                       int64_t h) {
  const struct wn_attention *whole = &m->op;
  const int which = mech_find(m, "y");
  double y[B * T * H * D]; /* of any type */
  struct mech_bench other = *m;
  other.a[which].data = y;
  view.y = y;
  view.s_y = (struct wn_stride){view.Tq * view.H * D, view.H * D, D};
  assert_true(view.B > 0);
  forward(m, &view);
  const struct wn_stride s = whole->s_y;
  for (int64_t n = 0; n < view.B; n++)
    for (int64_t t = 0; t < view.Tq; t++)
      for (int64_t g = 0; g < view.H; g++)
        for (int64_t d = 0; d < D; d++) {
          const double expected = mech_get(m, which, (b + n) * s.b + (r + t) * s.t + (h + g) * s.h + d),
                       found = mech_get(&other, which, ((n * view.Tq + t) * view.H + g) * D + d);
          if (expected != found)
            fail_msg("%s, %s: y[%d,%d,%d,%d] is %.17g, the whole call's %.17g", mech_name(m), what, (int)(b + n),
                     (int)(r + t), (int)(h + g), (int)d, found, expected);
        }
}

static void of_sequences_rows_and_heads(void **state) {
  (void)state;
  mech_list(false);
  for (int i = 0; i < mech_count; i++)
    for (int kind = 0; kind < 5; kind++) {
      const struct mech_case *c = &mech_cases[i];
      const wn_dtype dtype = kind == 4 ? WN_F32 : WN_F64;
      struct mech_bench m;
      const struct mech_setup s = setup_of(c, kind);
      mech_make(&m, &s, dtype);
      forward(&m, &m.op);
      const struct wn_attention one = wn_attention_of_sequence(&m.op, dtype, 1);
      check_view(&m, "a sequence", one, 1, 0, 0);
      check_view(&m, "half of its rows", wn_attention_of_rows(&one, dtype, 0, 33), 1, 0, 0);
      if (!m.op.sel.on) { /* the later rows need F of the earlier ones */
        check_view(&m, "rows of a sequence", wn_attention_of_rows(&one, dtype, 33, 20), 1, 33, 0);
        if (!m.op.doc_start && !m.op.threshold.control)
          check_view(&m, "rows", wn_attention_of_rows(&m.op, dtype, 60, 10), 0, 60, 0);
        else
          assert_int_equal(wn_attention_of_rows(&m.op, dtype, 60, 9).B, 0);
      }
      if (!m.op.sel.on || wn_selection_groups(&m.op) > 1)
        check_view(&m, "heads", wn_attention_of_heads(&m.op, dtype, 1, 1), 0, 0, H / HKV);
      check_view(&m, "all heads", wn_attention_of_heads(&m.op, dtype, 0, HKV), 0, 0, 0);
      mech_clear(&m);
    }
}

/* Copies rows from r on of an array [B,T,n*D] with strides s to the same rows of another array. */
static void put_rows(void *to, struct wn_stride s_to, const void *from, struct wn_stride s, int64_t rows, int64_t n,
                     int64_t width) {
  for (int64_t b = 0; b < B; b++)
    for (int64_t i = 0; i < rows; i++)
      for (int64_t h = 0; h < n; h++)
        memcpy((double *)to + b * s_to.b + i * s_to.t + h * s_to.h, (const double *)from + b * s.b + i * s.t + h * s.h,
               (size_t)width * sizeof(double));
}

/* A view of the last rows, extended to the front again: its pointers move back, and once the front rows have their
 * inputs the result is that of the whole call. */
static void rows_in_front(void **state) {
  (void)state;
  enum { FRONT = 33 };
  mech_list(true);
  for (int i = 0; i < mech_count; i++)
    for (int kind = 0; kind < 4; kind++) {
      const struct mech_case *c = &mech_cases[i];
      struct mech_bench m;
      const struct mech_setup s = setup_of(c, kind);
      mech_make(&m, &s, WN_F64);
      forward(&m, &m.op);
      const struct wn_attention last = wn_attention_of_rows(&m.op, WN_F64, FRONT, T - FRONT);
      struct wn_arrays counted = {0};
      wn_attention_with_rows_before(&last, WN_F64, FRONT, &counted);
      assert_null(counted.failed);
      struct wn_arrays placed = {.base = aligned_alloc(WN_ALIGN, counted.bytes)};
      struct wn_attention view = wn_attention_with_rows_before(&last, WN_F64, FRONT, &placed);
      assert_int_equal(placed.bytes, counted.bytes);
      assert_int_equal(view.Tq, T);
      const double *q = view.q;
      for (int64_t n = 0; n < FRONT * H * D; n++) assert_true(q[n] == 0);
      if (!view.sel.on)
        check_view(&m, "rows with others in front", wn_attention_of_rows(&view, WN_F64, FRONT, T - FRONT), 0, FRONT, 0);
      put_rows((void *)(uintptr_t)view.q, view.s_q, m.op.q, m.op.s_q, FRONT, H, D);
      if (view.span.dynamic)
        put_rows((void *)(uintptr_t)view.span.z, view.span.s_z, m.op.span.z, m.op.span.s_z, FRONT, H, 1);
      if (view.sel.bilinear)
        put_rows((void *)(uintptr_t)view.sel.sq, view.sel.s_sq, m.op.sel.sq, m.op.sel.s_sq, FRONT,
                 wn_selection_groups(&view), D);
      if (view.gate.on)
        put_rows((void *)(uintptr_t)view.gate.g, view.gate.s_g, m.op.gate.g, m.op.gate.s_g, FRONT, H,
                 view.gate.elementwise ? D : 1);
      check_view(&m, "all rows again", view, 0, 0, 0);
      free(placed.base);
      mech_clear(&m);
    }
}

/* F alone: a call on the selecting heads only. */
static void selections_alone(void **state) {
  (void)state;
  mech_list(true);
  for (int i = 0; i < mech_count; i++) {
    const struct mech_case *c = &mech_cases[i];
    struct mech_bench m;
    const struct mech_setup s = setup_of(c, i % 4);
    if (!c->config.selective.enabled) continue;
    mech_make(&m, &s, WN_F64);
    const int64_t G = wn_selection_groups(&m.op);
    double *F = calloc(2 * (size_t)(B * G * T * T), sizeof *F), *alone = F + B * G * T * T, y[B * T * H * D];
    m.op.sel.F = F;
    forward(&m, &m.op);
    struct wn_attention view = wn_attention_selection_only(&m.op, WN_F64);
    assert_int_equal(view.H, G);
    view.sel.F = alone;
    view.y = y;
    view.s_y = (struct wn_stride){T * G * D, G * D, D};
    forward(&m, &view);
    if (memcmp(F, alone, (size_t)(B * G * T * T) * sizeof *F) != 0) fail_msg("%s: F differs", mech_name(&m));
    free(F);
    mech_clear(&m);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_field_has_a_row),
      cmocka_unit_test(scopes),
      cmocka_unit_test(of_sequences_rows_and_heads),
      cmocka_unit_test(rows_in_front),
      cmocka_unit_test(selections_alone),
  };
  mech_open(&place, "ref", NULL);
  const int failed = cmocka_run_group_tests(tests, NULL, NULL);
  mech_close(&place);
  return failed;
}
