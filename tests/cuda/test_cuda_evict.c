/* The token that a full cache evicts, and how the others move: the same as on ref, to the bit, for every rule, with
 * ties, sinks, recent tokens and gaps. */
#include "support.h"

#include <math.h>

#include "backends/backends.h"
#include "backends/cuda/cuda.h"
#include "base/rng.h"
#include "cuda/emulate_api.h"
#include "kv/policy.h"
#include "ops/evict.h"
#include "policies.h"

enum { B = 2, P = 3, N_MAX = 40, CAPACITY = 41, VOTES = 5, ROWS = 2, WIDTH = 3 };

struct arrays {
  int32_t at[B * P * CAPACITY];
  float values[B * P * VOTES * CAPACITY], keys[B * P * ROWS * CAPACITY * WIDTH];
  uint16_t halves[B * P * CAPACITY];
  double room[B * P * N_MAX];
  int32_t index[B * P];
};

/* Positions in any order, and few different values, so that many tie. */
static void fill(struct arrays *x, int64_t N, int64_t row, uint64_t seed) {
  memset(x, 0, sizeof *x);
  for (int64_t r = 0; r < B * P; r++) {
    int32_t *at = x->at + r * CAPACITY;
    for (int64_t j = 0; j < N; j++) at[j] = (int32_t)(row - 1 - j);
    for (int64_t j = N - 1; j > 0; j--) {
      const int64_t other = (int64_t)wn_random_below(seed, WN_STREAM_TEST, (uint64_t)r, (uint64_t)j, (uint64_t)j + 1);
      const int32_t move = at[j];
      at[j] = at[other], at[other] = move;
    }
  }
  for (size_t i = 0; i < sizeof x->values / sizeof *x->values; i++)
    x->values[i] = (float)wn_random_below(seed, WN_STREAM_TEST, 100, i, 3) / 3;
  for (size_t i = 0; i < sizeof x->keys / sizeof *x->keys; i++) x->keys[i] = (float)i;
  for (size_t i = 0; i < sizeof x->halves / sizeof *x->halves; i++) x->halves[i] = (uint16_t)i;
}

static void run(const struct wn_exec *e, struct arrays *x, const struct wn_evict *call) {
  const struct wn_evict_slots slots[] = {{x->keys, ROWS, WIDTH * sizeof(float)}, {x->halves, 1, sizeof *x->halves}};
  struct wn_evict a = *call;
  for (int i = 0; i < B * P; i++) x->index[i] = (int32_t)(i % a.N);
  a.at = x->at, a.values = x->values, a.room = x->room, a.slots = slots, a.count = 2;
  a.index = a.rule.by == WN_EVICT_GIVEN ? x->index : NULL;
  assert_int_equal(wn_op_evict_forward(e, &a), WN_OK);
}

static void test_equal_to_the_host(void **state) {
  (void)state;
  static const int64_t sizes[] = {1, 2, 7, N_MAX};
  struct arrays *want = malloc(sizeof *want), *got = malloc(sizeof *got);
  assert_true(want && got);
  wn_context *ctx = make_context();
  const struct wn_exec host = {.ctx = ctx, .backend = wn_backend_ref(), .threads = 1, .dtype = WN_F32};
  struct wn_exec device = host;
  device.backend = wn_backend_cuda_table();
  int moved = 0, cases = 0;
  for (int by = WN_EVICT_OLDEST; by <= WN_EVICT_GIVEN; by++)
    for (size_t s = 0; s < 4; s++)
      for (int kind = 0; kind < 6; kind++) {
        const int64_t N = sizes[s], row = kind % 2 ? N + 7 : 1000;
        const struct wn_evict call = {.B = B,
                                      .P = P,
                                      .N = N,
                                      .capacity = CAPACITY,
                                      .rule = {.by = (enum wn_evict_by)by,
                                               .sinks = kind < 2    ? 0
                                                        : kind == 5 ? 2000
                                                                    : 10,
                                               .recent = kind == 4 ? 2000 : kind,
                                               .sign = kind % 2 ? 1 : -1,
                                               .seed = 5,
                                               .layer = 2,
                                               .votes = VOTES,
                                               .neighbours = kind == 3 ? WN_EVICT_NEIGHBOURS : kind % 3,
                                               .largest = kind > 2},
                                      .row = row,
                                      .first_group = 4};
        fill(want, N, row, (uint64_t)(by * 100 + kind));
        *got = *want;
        run(&host, want, &call);
        wn_emulate_seed((uint64_t)kind);
        run(&device, got, &call);
        assert_null(wn_emulate_error());
        memset(got->room, 0, sizeof got->room), memset(want->room, 0, sizeof want->room);
        assert_memory_equal(got, want, sizeof *want);
        for (int64_t r = 0; r < B * P; r++) assert_int_equal(got->at[r * CAPACITY + N - 1], row);
        moved += got->keys[0] != 0;
        cases++;
      }
  assert_int_equal(cases, 120);
  assert_true(moved > 10);
  free(want), free(got);
  wn_context_destroy(ctx);
}

/* Scores by keys have the host's bits, from floats and from half floats, and so the same token goes. */
static void test_keys(void **state) {
  (void)state;
  enum { HEADS = 2, D = 6, KEYS = B * P * HEADS * CAPACITY * D, ROOM = B * P * (2 * N_MAX + D) };
  struct memory {
    int32_t at[B * P * CAPACITY];
    float keys[KEYS];
    uint16_t halves[KEYS];
    double room[ROOM];
  } *want = malloc(sizeof *want), *got = malloc(sizeof *got);
  assert_true(want && got);
  wn_context *ctx = make_context();
  struct wn_exec e = {.ctx = ctx, .backend = wn_backend_ref(), .threads = 1, .dtype = WN_F32};
  static const char *const names[] = {"knorm", "keydiff"};
  int differ = 0;
  for (uint64_t seed = 0; seed < 24; seed++) {
    wn_budgets budgets;
    budgets_init(&budgets);
    assert_int_equal(wn_policy_find(NULL, names[seed % 2], &budgets.policy), WN_OK);
    const int64_t N = 1 + (int64_t)wn_random_below(seed, WN_STREAM_TEST, 1, 1, N_MAX), row = 60;
    const bool half = seed % 3 == 0;
    memset(want, 0, sizeof *want);
    for (int64_t r = 0; r < B * P; r++)
      for (int64_t j = 0; j < N; j++) want->at[r * CAPACITY + j] = (int32_t)((j * 7 + r) % 41);
    for (int i = 0; i < KEYS; i++) {
      want->keys[i] = (float)wn_random_normal(seed, WN_STREAM_TEST, 2, (uint64_t)i);
      want->halves[i] = (uint16_t)(wn_random_below(seed, WN_STREAM_TEST, 3, (uint64_t)i, 0x4000) + i % 2 * 0x8000);
    }
    *got = *want;
    struct memory *of[] = {want, got};
    for (int device = 0; device < 2; device++) {
      const struct wn_evict_slots slots[] = {{of[device]->keys, HEADS, D * sizeof(float)}};
      struct wn_evict a = {.B = B, .P = P, .N = N, .capacity = CAPACITY, .row = row, .slots = slots, .count = 1};
      wn_policy_rule(&budgets, 0, CAPACITY, &a.rule);
      a.at = of[device]->at, a.room = of[device]->room, a.heads = HEADS, a.D = D;
      a.k = (struct wn_policy_rows){.data = half ? (const void *)of[device]->halves : of[device]->keys,
                                    .head = CAPACITY * D,
                                    .token = D,
                                    .type = half ? WN_GGUF_F16 : WN_GGUF_F32};
      e.backend = device ? wn_backend_cuda_table() : wn_backend_ref();
      wn_emulate_seed(seed);
      assert_int_equal(wn_op_evict_forward(&e, &a), WN_OK);
      assert_null(wn_emulate_error());
    }
    assert_memory_equal(got, want, sizeof *want);
    for (int64_t r = 0; r < B * P; r++) differ += want->room[r] != 0;
  }
  assert_true(differ > 40);
  free(want), free(got);
  wn_context_destroy(ctx);
}

static void test_refuses(void **state) {
  (void)state;
  wn_context *ctx = make_context();
  const struct wn_exec e = {.ctx = ctx, .backend = wn_backend_cuda_table(), .threads = 1, .dtype = WN_F32};
  int32_t *at = calloc(4, sizeof *at);
  struct wn_evict a = {.B = 1, .P = 1, .N = 4, .capacity = 3, .at = at};
  assert_int_equal(wn_op_evict_forward(&e, &a), WN_ERR_SHAPE);
  a.capacity = 4, a.rule.by = WN_EVICT_VALUES;
  assert_int_equal(wn_op_evict_forward(&e, &a), WN_ERR_ARGUMENT);
  a.values = at, a.rule = (struct wn_evict_rule){.by = WN_EVICT_VOTES, .votes = 1, .neighbours = 16}, a.room = at;
  assert_int_equal(wn_op_evict_forward(&e, &a), WN_ERR_ARGUMENT);
  free(at);
  wn_context_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_equal_to_the_host), cmocka_unit_test(test_keys),
                                     cmocka_unit_test(test_refuses)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
