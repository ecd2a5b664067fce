/* What the subcommands of winnow bench share: repeats, samples, and the header of a result. */
#ifndef CLI_BENCH_H
#define CLI_BENCH_H

#include <winnow/measure.h>
#include <winnow/train.h>
#include "args.h"
#include "recipe.h"
#include "ui.h"

enum { BENCH_SAMPLES = 10000 };

struct samples {
  double seconds[BENCH_SAMPLES];
  int count;
};

struct bench {
  struct cli_common common;
  wn_context *ctx;
  int64_t warmup, repeats;
  int argc;
  char **argv;
};
/* NOLINTBEGIN(bugprone-macro-parentheses): m is the name of a member */
#define BENCH_OPTIONS(T, m)                                                                                            \
  CLI_OPTION(T, m.warmup, "warmup", "N", "runs before timing", .max = 1000),                                           \
      CLI_OPTION(T, m.repeats, "repeats", "N", "timed runs", .min = 1, .max = BENCH_SAMPLES),                          \
      CLI_COMMON_OPTIONS(T, m.common)
/* NOLINTEND(bugprone-macro-parentheses) */

/* The median. min, max and spread (interquartile range / median) may be NULL. */
double bench_median(const struct samples *s, double *min, double *max, double *spread);
json_t *bench_samples_json(const struct samples *s);
void bench_print_samples(const char *what, const struct samples *s, const char *rate);
/* The header of every result: machine, build, command line. */
json_t *bench_header(const struct bench *b, const char *what);
/* Adds the peaks of the memory of the backend and of the process, and prints it. Takes over j. */
int bench_print_json(wn_context *ctx, json_t *j);
json_t *bench_model_json(wn_context *ctx, const wn_model *model);
/* n standard normal floats, malloc'd. */
float *bench_random_floats(size_t n, uint64_t seed);
void bench_random_tokens(int32_t *out, size_t n, int64_t V, uint64_t *seed);
/* A recipe for token files may leave the vocabulary to the data, which bench does not read: 2 after reporting. */
int bench_need_vocabulary(const char *command, const wn_recipe *recipe, const char *or_else);

int bench_op(int argc, char **argv);
int bench_train(int argc, char **argv);
int bench_decode(int argc, char **argv);

#endif
