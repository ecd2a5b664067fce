/* Attention on rows in bf16. Whatever is not computed in bf16 has the bits of the same call on the floats that the rows
 * stand for, with results rounded; on the reference this is every case. The forward pass gives the same bits with any
 * number of threads. Rows that nothing sees do not matter. Unsupported combinations are refused.
 * test_attention_backends.c checks the precision. */
#include "isa.h"
#include "mechanisms.h"

#include "backends/cpu/cpu.h"

/* The same call on floats with the same values. */
static void widened(const struct mech_bench *m, struct mech_bench *wide) {
  struct mech_setup s = m->s;
  s.bf16 = false;
  mech_make(wide, &s, WN_F32);
  for (int i = 0; i < m->n; i++)
    for (int64_t k = 0; k < m->a[i].count; k++) mech_set(wide, i, k, mech_get(m, i, k));
}

static void same_but_rounded(const struct mech_place *p, const struct mech_bench *got, const struct mech_bench *wide) {
  for (int i = 0; i < got->n; i++)
    for (int64_t k = 0; k < got->a[i].count; k++) {
      const double w = mech_get(wide, i, k), g = mech_get(got, i, k);
      const double expected = mech_half(got, i) ? (double)wn_bf16_value(wn_bf16_round((float)w)) : w;
      if (expected != g)
        fail_msg("%s on %s: %s[%lld] is %.9g, expected %.9g", mech_name(got), p->backend->name, got->a[i].name,
                 (long long)k, g, expected);
    }
}

static struct mech_setup variant(const struct mech_case *c, int which) {
  struct mech_setup s = {.c = c, .B = 1, .Tq = 67, .Tk = 67, .H = 2, .Hkv = 1, .D = 16, .bf16 = true};
  s.seed = (uint64_t)c->number;
  if (which == 1) s.Tq = s.Tk = 65, s.H = 4, s.Hkv = 2, s.D = 21, s.documents = s.control = true, s.dropout = 0.3;
  if (which == 2) s.Tq = 37, s.Tk = 131, s.dk_from = 94, s.D = 8, s.f_in = s.heads_first = true;
  s.evicts = which;
  if (c->config.selective.head >= s.H) s.H = s.Hkv = c->config.selective.head + 1;
  return s;
}
enum { VARIANTS = 3 };

static void check_widened(const char *backend, const char *isa) {
  struct mech_place p;
  if (!mech_open(&p, backend, isa)) skip();
  mech_list(false);
  for (int c = 0; c < mech_alone; c++)
    for (int v = 0; v < VARIANTS; v++) {
      const struct mech_setup s = variant(&mech_cases[c], v);
      struct mech_bench m, wide;
      p.threads = 1 + v % 2;
      mech_make(&m, &s, WN_F32);
      widened(&m, &wide);
      assert_true(mech_call(&p, &m, &m.op, false) && mech_call(&p, &wide, &wide.op, false));
      same_but_rounded(&p, &m, &wide);
      /* The backward pass reads y as stored in bf16. */
      const int y = mech_find(&m, "y");
      for (int64_t k = 0; k < m.a[y].count; k++) mech_set(&wide, y, k, mech_get(&m, y, k));
      assert_true(mech_call(&p, &m, &m.op, true) && mech_call(&p, &wide, &wide.op, true));
      same_but_rounded(&p, &m, &wide);
      mech_clear(&m), mech_clear(&wide);
    }
  mech_close(&p);
}

static void reference(void **state) {
  (void)state;
  check_widened("ref", NULL);
}
static void cpu_avx2(void **state) {
  (void)state;
  check_widened("cpu", ISA_OF_EIGHT);
}

/* One long sequence, divided among several threads. */
static void forward_on(struct mech_place *p, const struct mech_case *c, int64_t D, int threads, bool hide,
                       struct mech_bench *m) {
  struct mech_setup s = {.c = c, .B = 1, .Tq = 325, .Tk = 325, .H = 2, .Hkv = 2, .D = D, .bf16 = true};
  s.seed = (uint64_t)c->number;
  if (c->config.selective.head >= s.H) s.H = s.Hkv = c->config.selective.head + 1;
  p->threads = threads;
  mech_make(m, &s, WN_F32);
  const int k = mech_find(m, "k"), v = mech_find(m, "v");
  int32_t *first = m->doc_start = m->op.doc_start ? m->doc_start : malloc((size_t)s.Tk * sizeof *first);
  for (int64_t t = 0; t < s.Tk; t++) first[t] = t < 97 ? 0 : 97; /* rows from 97 on do not see earlier ones */
  m->op.doc_start = first;
  for (int64_t i = 0; hide && i < 97 * m->a[k].t_stride; i++) mech_set(m, k, i, 3), mech_set(m, v, i, -40);
  assert_true(mech_call(p, m, &m->op, false));
}

static void threads_and_hidden_rows(int64_t D) {
  struct mech_place p;
  mech_open(&p, "cpu", NULL);
  mech_list(false);
  for (int c = 0; c < mech_alone; c++) {
    struct mech_bench one, other;
    forward_on(&p, &mech_cases[c], D, 1, false, &one);
    for (int turn = 3; turn <= 4; turn++) { /* with three threads; with other keys before row 97 */
      forward_on(&p, &mech_cases[c], D, turn == 4 ? 1 : turn, turn == 4, &other);
      const int y = mech_find(&one, "y");
      for (int64_t i = turn == 4 ? 97 * one.a[y].t_stride : 0; i < one.a[y].count; i++)
        if (mech_get(&one, y, i) != mech_get(&other, y, i))
          fail_msg("%s, %s: y[%lld] is %.9g, expected %.9g", mech_name(&one),
                   turn == 4 ? "other hidden keys" : "threads", (long long)i, mech_get(&other, y, i),
                   mech_get(&one, y, i));
      mech_clear(&other);
    }
    mech_clear(&one);
  }
  mech_close(&p);
}

static void in_pairs(void **state) {
  (void)state;
  threads_and_hidden_rows(10);
}
static void in_tiles(void **state) {
  (void)state;
  if (!wn_cpu_has_amx()) skip();
  threads_and_hidden_rows(32);
}

static void refused(void **state) {
  (void)state;
  wn_context *ctx = make_context();
  static uint16_t x[4 * 64];
  static _Alignas(64) char scratch[1 << 16];
  struct wn_attention a = {
      .B = 1, .Tq = 1, .Tk = 4, .H = 1, .Hkv = 1, .D = 8, .scale = 1, .q = x, .k = x, .v = x, .y = x};
  a.s_q = a.s_k = a.s_v = a.s_y = (struct wn_stride){32, 8, 8};
  struct wn_exec e = {.ctx = ctx, .threads = 1, .dtype = WN_F32, .scratch = scratch, .scratch_bytes = sizeof scratch};
  assert_ok(ctx, wn_backend_of(ctx, &e.backend));
  a.row_type = WN_F16;
  assert_refused(ctx, wn_op_attention_forward(&e, &a), WN_ERR_UNSUPPORTED,
                 "attention: row_type is F16, expected F32 or BF16");
  a.row_type = WN_F64;
  assert_refused(ctx, wn_op_attention_forward(&e, &a), WN_ERR_UNSUPPORTED,
                 "attention: row_type is F64, expected F32 or BF16");
  a.row_type = WN_BF16, a.k_type = a.v_type = WN_GGUF_F16;
  assert_refused(ctx, wn_op_attention_forward(&e, &a), WN_ERR_UNSUPPORTED,
                 "attention: keys in F16 do not serve the term \"rows in bf16\"");
  wn_context_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(reference), cmocka_unit_test(cpu_avx2), cmocka_unit_test(in_pairs),
      cmocka_unit_test(in_tiles),  cmocka_unit_test(refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
