/* Prefill and decoding of a model on random tokens, as JSON on standard output, for bench/real-models.
 *
 *   bench_real MODEL THREADS CONTEXT ROUNDS PROMPT,PROMPT,... DECODED f32|f16|q8_0|q4_0 [auto|file|bf16]
 *
 * For each round and prompt length it prints the seconds for the prompt (including its last logits), for each token
 * decoded after it, and the processor's for all of these. The cache has room for CONTEXT tokens, with keys and values
 * in the given format. Tokens come from a fixed generator that the peer's script repeats. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include <winnow/context.h>
#include <winnow/kv.h>
#include <winnow/model.h>

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Ordinary tokens only: the first hundred may be special. */
static uint32_t state;
static int32_t token(int64_t V) {
  state = state * 1664525u + 1013904223u;
  return (int32_t)(100 + (state >> 8) % (uint32_t)(V - 100));
}

static int give_up(wn_context *ctx, const char *what) {
  fprintf(stderr, "bench_real: %s: %s\n", what, wn_context_error(ctx));
  return 1;
}

int main(int argc, char **argv) {
  if (argc != 8 && argc != 9) {
    fprintf(stderr, "usage: bench_real MODEL THREADS CONTEXT ROUNDS PROMPT,PROMPT,... DECODED f32|f16|q8_0|q4_0 "
                    "[auto|file|bf16]\n");
    return 2;
  }
  const int64_t capacity = atoll(argv[3]), rounds = atoll(argv[4]), decoded = atoll(argv[6]);
  wn_context *ctx = NULL;
  wn_model *model = NULL;
  wn_session *session = NULL;
  const double start = now();
  if (wn_context_create(&(wn_context_options){.size = sizeof(wn_context_options), .threads = atoi(argv[2])}, &ctx) !=
      WN_OK)
    return give_up(ctx, "context");
  const char *held = argc == 9 ? argv[8] : "auto";
  const wn_model_load_options load = {.size = sizeof load,
                                      .weights = !strcmp(held, "bf16")   ? WN_WEIGHTS_BFLOAT16
                                                 : !strcmp(held, "file") ? WN_WEIGHTS_FILE
                                                                         : WN_WEIGHTS_AUTO};
  if (wn_model_load(ctx, argv[1], &load, &model) != WN_OK) return give_up(ctx, "model");
  const wn_session_options options = {.size = sizeof options,
                                      .sequences = 1,
                                      .capacity = capacity,
                                      .cache = !strcmp(argv[7], "f16")    ? WN_CACHE_HALF
                                               : !strcmp(argv[7], "q8_0") ? WN_CACHE_Q8_0
                                               : !strcmp(argv[7], "q4_0") ? WN_CACHE_Q4_0
                                                                          : WN_CACHE_FLOAT};
  if (wn_session_create(ctx, model, &options, &session) != WN_OK) return give_up(ctx, "session");
  const int64_t V = wn_model_config_get(model)->vocab_size;
  printf("{\"load_s\": %.6f, \"runs\": [", now() - start);
  int32_t *tokens = malloc((size_t)capacity * sizeof *tokens);
  float *logits = malloc((size_t)V * sizeof *logits);
  if (!tokens || !logits) return give_up(ctx, "memory");
  const char *comma = "";
  for (int64_t r = 0; r < rounds; r++) {
    for (const char *at = argv[5]; *at; at += strcspn(at, ","), at += *at == ',') {
      const int64_t T = atoll(at);
      state = (uint32_t)(r * 7919 + T);
      for (int64_t i = 0; i < T; i++) tokens[i] = token(V);
      wn_session_reset(session);
      double t = now();
      if (wn_session_feed(ctx, session, tokens, T, 0, logits) != WN_OK) return give_up(ctx, "prompt");
      printf("%s{\"prompt\": %lld, \"prefill_s\": %.9f, \"decode_s\": [", comma, (long long)T, now() - t);
      comma = ", ";
      const clock_t busy = clock();
      for (int64_t i = 0; i < decoded; i++) {
        const int32_t next = token(V);
        t = now();
        if (wn_session_feed(ctx, session, &next, 1, 0, logits) != WN_OK) return give_up(ctx, "token");
        printf("%s%.9f", i ? ", " : "", now() - t);
      }
      printf("], \"decode_processor_s\": %.6f}", (double)(clock() - busy) / CLOCKS_PER_SEC);
    }
  }
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  printf("], \"kv_bytes\": %zu, \"peak_bytes\": %lld}\n", wn_session_kv_bytes(session),
         (long long)usage.ru_maxrss * 1024);
  free(tokens), free(logits);
  wn_session_destroy(session);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
  return 0;
}
