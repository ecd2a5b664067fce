/* Span corruption: lengths as T5's program computes them, inputs and targets together restore the text, frequencies,
 * orders, and data sources of it. */
#include "support.h"

#include "base/rng.h"
#include "data/span_corruption.h"
#include "winnow/data.h"

static wn_context *ctx;
static char folder[512], path[600];
enum { TOKENS = 1003, VOCAB = 120, SENTINELS = 20 };

static int setup(void **state) {
  (void)state;
  ctx = make_context();
  make_folder(folder);
  snprintf(path, sizeof path, "%s/tokens.bin", folder);
  int32_t ids[TOKENS];
  for (int i = 0; i < TOKENS; i++) ids[i] = 1 + (int32_t)wn_random_below(1, WN_STREAM_TEST, 0, (uint64_t)i, 99);
  return wn_token_file_write(ctx, path, "llmc", VOCAB, ids, TOKENS) == WN_OK ? 0 : -1;
}
static int teardown(void **state) {
  (void)state;
  wn_context_destroy(ctx);
  remove_folder(folder);
  return 0;
}

/* compute_input_and_target_lengths of T5's program: 512 gives 568 and 114, and others. */
static void lengths_are_those_of_t5(void **state) {
  (void)state;
  static const struct {
    int64_t input;
    double density, mean;
    int64_t text, target;
  } known[] = {{512, 0.15, 3, 568, 114}, {1024, 0.15, 3, 1137, 229}, {256, 0.15, 3, 284, 58},
               {128, 0.15, 3, 141, 29},  {512, 0.5, 3, 766, 512},    {64, 0.3, 5, 83, 31}};
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    int64_t text, target, noise, spans;
    wn_span_corruption_lengths(known[i].input, known[i].density, known[i].mean, &text, &target);
    wn_span_corruption_noise(text, known[i].density, known[i].mean, &noise, &spans);
    if (text != known[i].text || target != known[i].target)
      fail_msg("%lld tokens of input: a text of %lld and targets of %lld, expected %lld and %lld",
               (long long)known[i].input, (long long)text, (long long)target, (long long)known[i].text,
               (long long)known[i].target);
    assert_true(text - noise + spans + 1 <= known[i].input);
  }
}

/* The longest text whose inputs fit, also where a sentinel takes as much room as its span frees. */
static void inputs_fit(void **state) {
  (void)state;
  static const double densities[] = {0.001, 0.1, 0.15, 0.3, 0.45, 0.9}, means[] = {1, 1.2, 2, 3, 10};
  for (int64_t input = 3; input <= 130; input++)
    for (size_t d = 0; d < sizeof densities / sizeof *densities; d++)
      for (size_t m = 0; m < sizeof means / sizeof *means; m++) {
        int64_t text, target, noise, spans, left[2];
        wn_span_corruption_lengths(input, densities[d], means[m], &text, &target);
        for (int k = 0; k < 2; k++) {
          wn_span_corruption_noise(text + k, densities[d], means[m], &noise, &spans);
          left[k] = text + k - noise + spans + 1;
        }
        if (left[0] > input || left[1] <= input)
          fail_msg("%lld tokens of input, density %g, mean %g: a text of %lld has %lld, one of %lld has %lld",
                   (long long)input, densities[d], means[m], (long long)text, (long long)left[0], (long long)text + 1,
                   (long long)left[1]);
      }
}

/* Puts the spans back where their sentinels are. Returns the length. Checks the order of sentinels and the end. */
static int64_t restore(const struct wn_span_corruption *c, const int32_t *inputs, int64_t input_count,
                       const int32_t *targets, int64_t target_count, int32_t *text) {
  int64_t n = 0, t = 0;
  int32_t next = (c->vocab_size - 1);
  for (int64_t i = 0; i + 1 < input_count; i++) {
    if (inputs[i] != next) {
      assert_true(inputs[i] <= c->vocab_size - 1 - SENTINELS);
      text[n++] = inputs[i];
      continue;
    }
    assert_true(i > 0 && inputs[i - 1] != next + 1); /* spans do not touch: a kept token before each */
    assert_int_equal(targets[t++], next--);
    const int64_t from = t;
    while (targets[t] <= c->vocab_size - 1 - SENTINELS && t + 1 < target_count) text[n++] = targets[t++];
    assert_true(t > from); /* no span is empty */
  }
  assert_int_equal(t, target_count - 1);
  const int32_t end = c->end >= 0 ? c->end : next;
  assert_int_equal(inputs[input_count - 1], end);
  assert_int_equal(targets[target_count - 1], end);
  return n;
}

static void the_text_comes_back(void **state) {
  (void)state;
  struct wn_span_corruption c = {.density = 0.15, .mean_span = 3, .vocab_size = 1000, .end = -1};
  int32_t text[100], inputs[120], targets[120], back[120];
  for (int64_t n = 2; n <= 100; n++) {
    for (uint64_t row = 0; row < 6; row++) {
      c.density = row % 2 ? 0.15 : 0.4, c.mean_span = row % 3 ? 3 : 1 + (double)row, c.end = row == 5 ? 7 : -1;
      if (n > 40 && c.mean_span < 2) continue; /* more spans than there are sentinels */
      for (int64_t i = 0; i < n; i++) text[i] = 10 + (int32_t)i;
      int64_t noise, spans;
      struct wn_span_row made = {.inputs = inputs, .targets = targets};
      wn_span_corrupt(&c, 5, row, text, n, &made);
      wn_span_corruption_noise(n, c.density, c.mean_span, &noise, &spans);
      assert_int_equal(made.input_count, n - noise + spans + 1);
      assert_int_equal(made.target_count, noise + spans + 1);
      assert_int_equal(restore(&c, inputs, made.input_count, targets, made.target_count, back), n);
      assert_memory_equal(back, text, (size_t)n * sizeof *text);
    }
  }
}

/* Every token but the first is dropped equally often, and every way to divide 4 tokens into 2 spans is drawn equally
 * often. */
static void spans_are_drawn_evenly(void **state) {
  (void)state;
  enum { ROWS = 6000, N = 9 };
  const struct wn_span_corruption c = {.density = 4.0 / 9, .mean_span = 2, .vocab_size = 1000, .end = -1};
  int32_t text[N], inputs[20], targets[20];
  int first[4] = {0};
  for (int i = 0; i < N; i++) text[i] = i;
  for (uint64_t row = 0; row < ROWS; row++) {
    struct wn_span_row made = {.inputs = inputs, .targets = targets};
    wn_span_corrupt(&c, 3, row, text, N, &made);
    assert_int_equal(made.target_count, 7); /* 2 sentinels, 4 dropped tokens, the end */
    int length = 0;
    while (targets[1 + length] < N) length++;
    first[length]++;
    assert_int_equal(inputs[0], 0);
  }
  assert_int_equal(first[0], 0);
  for (int i = 1; i < 4; i++) assert_true(abs(first[i] - ROWS / 3) < 150); /* four standard deviations */
}

static wn_data_config config_of(void) {
  wn_data_config c = {.kind = WN_DATA_SPAN_CORRUPTION,
                      .noise_density = 0.15,
                      .mean_span = 3,
                      .sentinels = SENTINELS,
                      .input_length = 32,
                      .end_token = -1,
                      .document_token = -1};
  snprintf(c.train, sizeof c.train, "%s", path);
  snprintf(c.val, sizeof c.val, "%s", path);
  return c;
}

/* One pass over the validation split covers the file; a training epoch has every block once; everything is a function
 * of (seed, step); a batch in two halves has the same sequences as the whole batch. */
static void sources_cover_the_file(void **state) {
  (void)state;
  enum { S = 32, T = 12, B = 4 };
  const wn_data_config c = config_of();
  const struct wn_span_corruption shape = {.vocab_size = VOCAB, .end = -1};
  int32_t ids[TOKENS + 100], inputs[2 * B * S], tokens[2 * B * T], targets[2 * B * T], count[2 * B], text[80];
  wn_token_file *file;
  assert_ok(ctx, wn_token_file_open(ctx, path, &file));
  assert_ok(ctx, wn_token_file_read(ctx, file, 0, TOKENS, ids));
  wn_token_file_close(file);
  wn_data_source *s;
  assert_ok(ctx, wn_data_source_create(ctx, &c, "val", T, VOCAB, &s));
  assert_int_equal(wn_data_source_input_length(s), S);
  int64_t at = 0;
  for (uint64_t step = 0; step < wn_data_source_batches(s, B); step++) {
    assert_ok(ctx, wn_data_source_batch(ctx, s, step, step, B, tokens, targets, NULL)); /* seeds do not matter */
    assert_ok(ctx, wn_data_source_inputs(ctx, s, 9, step, B, inputs, count));
    for (int b = 0; b < B; b++) {
      int64_t target = 0;
      while (target < T && targets[b * T + target] >= 0) target++;
      for (int64_t i = target; i < T; i++) assert_int_equal(targets[b * T + i], -1);
      for (int64_t i = count[b]; i < S; i++) assert_int_equal(inputs[b * S + i], 0);
      assert_int_equal(tokens[b * T], 0);
      for (int64_t i = 1; i < target; i++) assert_int_equal(tokens[b * T + i], targets[b * T + i - 1]);
      if (count[b] == 0) continue;
      const int64_t n = restore(&shape, inputs + b * S, count[b], targets + b * T, target, text);
      assert_memory_equal(text, ids + at, (size_t)n * sizeof *text);
      at += n;
    }
  }
  assert_int_equal(at, TOKENS);
  wn_data_source_destroy(s);

  assert_ok(ctx, wn_data_source_create(ctx, &c, "train", T, VOCAB, &s));
  int64_t length, target;
  wn_span_corruption_lengths(S, c.noise_density, c.mean_span, &length, &target);
  bool seen[TOKENS] = {false};
  for (int g = 0; g < TOKENS / length; g++) { /* an epoch, sequence by sequence */
    assert_ok(ctx, wn_data_source_batch(ctx, s, 4, (uint64_t)g, 1, tokens, targets, NULL));
    assert_ok(ctx, wn_data_source_inputs(ctx, s, 4, (uint64_t)g, 1, inputs, count));
    assert_int_equal(restore(&shape, inputs, count[0], targets, target, text), length);
    int64_t where = 0;
    while (where + length <= TOKENS && memcmp(ids + where, text, (size_t)length * sizeof *text)) where++;
    assert_true(where + length <= TOKENS && !seen[where]);
    seen[where] = true;
  }
  assert_ok(ctx, wn_data_source_inputs(ctx, s, 4, 1, 2 * B, inputs, count));
  assert_ok(ctx, wn_data_source_batch(ctx, s, 4, 1, 2 * B, tokens, targets, NULL));
  int32_t half[B * S], half_targets[B * T], half_tokens[B * T], half_count[B];
  assert_ok(ctx, wn_data_source_inputs(ctx, s, 4, 3, B, half, half_count));
  assert_ok(ctx, wn_data_source_batch(ctx, s, 4, 3, B, half_tokens, half_targets, NULL));
  assert_memory_equal(half, inputs + B * S, sizeof half);
  assert_memory_equal(half_targets, targets + B * T, sizeof half_targets);
  assert_ok(ctx, wn_data_source_inputs(ctx, s, 5, 3, B, half, half_count));
  assert_true(memcmp(half, inputs + B * S, sizeof half) != 0);
  wn_data_source_destroy(s);
}

static void mistakes_are_named(void **state) {
  (void)state;
  wn_data_source *s;
#define REFUSED(T, status, part, ...)                                                                                  \
  do {                                                                                                                 \
    wn_data_config c = config_of();                                                                                    \
    __VA_ARGS__;                                                                                                       \
    assert_refused(ctx, wn_data_source_create(ctx, &c, "train", T, VOCAB, &s), status, part);                          \
  } while (0)
  REFUSED(12, WN_ERR_CONFIG, "data.train", c.train[0] = 0);
  REFUSED(12, WN_ERR_CONFIG, "input_length", c.input_length = 0);
  REFUSED(12, WN_ERR_CONFIG, "input_length", c.input_length = 2);
  REFUSED(5, WN_ERR_SHAPE, "the context has 5", (void)c);
  REFUSED(12, WN_ERR_CONFIG, "\"data.sentinels\" is 2", c.sentinels = 2);
  REFUSED(12, WN_ERR_CONFIG, "do not fit", c.sentinels = VOCAB);
  REFUSED(12, WN_ERR_CONFIG, "end_token 120", c.end_token = VOCAB);
  REFUSED(2000, WN_ERR_FORMAT, "fewer than a block", c.input_length = 1000, c.mean_span = 12);
  wn_data_config c = config_of();
  c.sentinels = 40; /* the file's tokens go up to 99 */
  int32_t inputs[32], count[1];
  assert_ok(ctx, wn_data_source_create(ctx, &c, "train", 12, VOCAB, &s));
  assert_refused(ctx, wn_data_source_inputs(ctx, s, 0, 0, 1, inputs, count), WN_ERR_SHAPE, "before the sentinels");
  wn_data_source_destroy(s);
  const wn_data_config plain = {.kind = WN_DATA_PARITY, .max_length = 4};
  assert_ok(ctx, wn_data_source_create(ctx, &plain, "train", 4, 2, &s));
  assert_int_equal(wn_data_source_input_length(s), 0);
  assert_refused(ctx, wn_data_source_inputs(ctx, s, 0, 0, 1, inputs, count), WN_ERR_ARGUMENT, "has none");
  wn_data_source_destroy(s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(lengths_are_those_of_t5), cmocka_unit_test(inputs_fit),
      cmocka_unit_test(the_text_comes_back),     cmocka_unit_test(spans_are_drawn_evenly),
      cmocka_unit_test(sources_cover_the_file),  cmocka_unit_test(mistakes_are_named),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
