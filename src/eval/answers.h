/* The lines of a file of questions with written answers. */
#ifndef WN_EVAL_ANSWERS_H
#define WN_EVAL_ANSWERS_H

#include "eval/questions.h"
#include "winnow/answers.h"

enum { WN_ANSWER_MOST_TOKENS = 1 << 24 };

/* A line. Texts belong to `line`; what is absent is "". */
struct wn_sample {
  char where[WN_QUESTION_WHERE]; /* "FILE:LINE" */
  json_t *line;
  const char *task, *context, *question, *prefix; /* prefix: the answer's beginning */
  const char *references[WN_TASK_CHOICES], *stop[WN_TASK_CHOICES];
  int reference_count, stop_count;
  wn_scorer scorer;
  int64_t max_tokens;
  int32_t *ids;         /* [n] the prompt's tokens */
  int64_t number;       /* of the lines that are answered, from 0 */
  int64_t n, context_n; /* context_n: how many of them are the context, fewer than n; 0: there is none */
};
/* Reads and checks the next line. *more false: there is none. */
wn_status wn_sample_next(wn_context *ctx, const wn_answers_options *options, struct wn_lines *lines,
                         struct wn_sample *out, bool *more);
/* Makes the prompt's tokens. */
wn_status wn_sample_encode(wn_context *ctx, const wn_answers_options *options, struct wn_sample *sample);
void wn_sample_clear(struct wn_sample *sample); /* allowed on {0} */

#endif
