/* Synthetic tasks of Leviathan, Kalman, Matias, arXiv 2410.02703, §2 and appendix A.1; Copy and Parity* of the extended
 * version's appendix A.2.
 *
 * Variable Assignment. Tokens 0..variables-1 are "x=", "y=", ...; variables.. are the values. A sequence is "x=" 17
 * "z=" 4 ... and ends with one more "x=", the query. The query is the same token as in an assignment, so the answer
 * always follows the token "x=" (the extended version's figure 8 shows two tokens an assignment). Only the query's
 * position counts; its target is the latest value of that variable. Variables and values are uniform; the query is
 * uniform over the variables that occur.
 *
 * Copy. BOS x1 .. xn SEPARATOR x1 .. xn EOS, n uniform in 1..max_length (the context of 2 max_length + 3 is the
 * paper's); x1 .. xn and EOS after the separator count.
 *
 * Parity*. Bits. Odd positions (counted from 1) are random. An even position holds the parity of all odd positions
 * before it, which is the exclusive or of the two bits before it. Only even positions count. */
#include "data/tasks.h"
#include "base/misuse.h"
#include "base/rng.h"

#include <stdio.h>

#define VAL_BIT ((uint64_t)1 << 63) /* gives validation sequences numbers of their own */

struct draws {
  uint64_t seed, row, next;
};

static uint64_t tasks_draw(struct draws *d, uint64_t n) {
  return wn_random_below(d->seed, WN_STREAM_TASK, d->row, d->next++, n);
}

static int64_t variable_assignment(const wn_data_config *c, bool val, struct draws *d, int32_t *tokens,
                                   int32_t *targets) {
  uint64_t variables = (uint64_t)c->variables;
  uint64_t values = (uint64_t)(val && c->eval_values ? c->eval_values : c->values);
  int64_t n = 2 * (int64_t)c->assignments;
  for (int64_t i = 0; i < n; i += 2) {
    uint64_t pair = tasks_draw(d, variables * values);
    tokens[i] = (int32_t)(pair % variables);
    tokens[i + 1] = (int32_t)(variables + pair / variables);
    targets[i] = targets[i + 1] = -1;
  }
  /* Draws a variable until it is one that occurs. If few of many variables occur, it takes that of a random
   * assignment. */
  for (int attempt = 0;; attempt++) {
    int32_t query =
        attempt < 64 ? (int32_t)tasks_draw(d, variables) : tokens[2 * tasks_draw(d, (uint64_t)c->assignments)];
    for (int64_t i = n - 2; i >= 0; i -= 2) {
      if (tokens[i] != query) continue;
      tokens[n] = query;
      targets[n] = tokens[i + 1];
      return n + 1;
    }
  }
}

static int64_t tasks_copy(const wn_data_config *c, struct draws *d, int32_t *tokens, int32_t *targets) {
  int64_t n = 1 + (int64_t)tasks_draw(d, (uint64_t)c->max_length), end = 2 * n + 3;
  tokens[0] = WN_COPY_BOS;
  tokens[n + 1] = WN_COPY_SEPARATOR;
  tokens[end - 1] = WN_COPY_EOS;
  for (int64_t i = 1; i <= n; i++)
    tokens[i] = tokens[n + 1 + i] = WN_COPY_SYMBOL + (int32_t)tasks_draw(d, (uint64_t)c->values);
  for (int64_t i = 0; i < end; i++) targets[i] = i > n && i < end - 1 ? tokens[i + 1] : -1;
  return end;
}

static int64_t parity(const wn_data_config *c, struct draws *d, int32_t *tokens, int32_t *targets) {
  int64_t n = c->max_length;
  int32_t sum = 0;
  uint64_t bits = 0;
  for (int64_t i = 0; i < n; i++) {
    if (i % 2 == 0) {
      if (i % 128 == 0) bits = wn_random_u64(d->seed, WN_STREAM_TASK, d->row, d->next++);
      tokens[i] = (int32_t)(bits & 1);
      bits >>= 1;
      sum ^= tokens[i];
      targets[i] = i + 1 < n ? sum : -1;
    } else {
      tokens[i] = sum;
      targets[i] = -1;
    }
  }
  return n;
}

void wn_task_sample(const wn_data_config *config, bool val, uint64_t seed, uint64_t row, int64_t T, int32_t *tokens,
                    int32_t *targets) {
  struct draws d = {.seed = seed, .row = val ? row | VAL_BIT : row & ~VAL_BIT};
  int64_t used = 0;
  switch (config->kind) {
  case WN_DATA_VARIABLE_ASSIGNMENT:
    used = variable_assignment(config, val, &d, tokens, targets);
    break;
  case WN_DATA_COPY:
    used = tasks_copy(config, &d, tokens, targets);
    break;
  case WN_DATA_PARITY:
    used = parity(config, &d, tokens, targets);
    break;
  case WN_DATA_TOKENS:
  case WN_DATA_SPAN_CORRUPTION:
    break;
  }
  int32_t pad = config->kind == WN_DATA_COPY ? WN_COPY_EOS : 0;
  for (int64_t i = used; i < T; i++) {
    tokens[i] = pad;
    targets[i] = -1;
  }
}

/* Names symbol i of n by a letter if there are enough letters. Few symbols get the last letters, like the paper's X, Y,
 * Z. */
static int tasks_letter(char *out, size_t bytes, int32_t i, int32_t n, char first, const char *end) {
  const int32_t from = first == 'A' && n <= 3 ? 26 - n : 0;
  if (n <= 26) return snprintf(out, bytes, "%c%s", first + from + i, end);
  return snprintf(out, bytes, "%s%d%s", first == 'A' ? "v" : "", i, end);
}

bool wn_data_token_name(const wn_data_config *c, int32_t id, char *out, size_t bytes) {
  static const char *const marks[] = {"<BOS>", "<EOI>", "<EOS>"};
  WN_CHECK_OR(false, WN_POINTER_AS("config", c), WN_ARRAY(out, bytes));
  int64_t entries, context;
  int n = -1;
  wn_data_config_requirements(c, &entries, &context);
  if (bytes == 0 || id < 0 || id >= entries) return false;
  switch (c->kind) {
  case WN_DATA_VARIABLE_ASSIGNMENT:
    n = id < c->variables ? tasks_letter(out, bytes, id, c->variables, 'A', "=")
                          : snprintf(out, bytes, "%d", id - c->variables);
    break;
  case WN_DATA_COPY:
    n = id < WN_COPY_SYMBOL ? snprintf(out, bytes, "%s", marks[id])
                            : tasks_letter(out, bytes, id - WN_COPY_SYMBOL, c->values, 'a', "");
    break;
  case WN_DATA_PARITY:
    n = snprintf(out, bytes, "%d", id);
    break;
  case WN_DATA_TOKENS:
  case WN_DATA_SPAN_CORRUPTION:
    break;
  }
  return n > 0 && (size_t)n < bytes;
}
