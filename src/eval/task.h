/* Tasks from the inside: a row each, which reads a line of the task's file into what is to be scored. */
#ifndef WN_EVAL_TASK_H
#define WN_EVAL_TASK_H

#include <jansson.h>
#include "base/alloc.h"
#include "base/error.h"
#include "base/text.h"
#include "winnow/task.h"

enum { WN_TASK_CHOICES = 64 }; /* of a question, at most */

/* A question: requests, each a context and a continuation whose log probability is asked for. */
struct wn_question {
  const char *where; /* "FILE:LINE", for messages */
  int count;         /* requests */
  int gold;          /* the right one; -1: there is nothing to choose */
  struct wn_task_request {
    struct wn_text context, continuation;
    size_t bare; /* bytes of the continuation before the choice itself begins: its delimiter */
  } requests[WN_TASK_CHOICES];
};

struct wn_task_row {
  wn_task_info info;
  wn_status (*read)(wn_context *ctx, const json_t *line, struct wn_question *q);
};

#define WN_TASKS(TASK)                                                                                                 \
  TASK(hellaswag)                                                                                                      \
  TASK(arc_easy)                                                                                                       \
  TASK(arc_challenge)                                                                                                  \
  TASK(piqa)                                                                                                           \
  TASK(commonsense_qa)                                                                                                 \
  TASK(openbookqa)                                                                                                     \
  TASK(boolq)                                                                                                          \
  TASK(lambada_openai)                                                                                                 \
  TASK(social_iqa)                                                                                                     \
  TASK(winogrande)                                                                                                     \
  TASK(copa)                                                                                                           \
  TASK(wsc273)                                                                                                         \
  TASK(choices)
#define WN_TASK_DECLARE(name) extern const struct wn_task_row wn_task_##name;
WN_TASKS(WN_TASK_DECLARE)

#define WN_METRICS_ACC (1u << WN_METRIC_ACC)
#define WN_METRICS_NORM (WN_METRICS_ACC | 1u << WN_METRIC_ACC_NORM | 1u << WN_METRIC_ACC_BYTES)

/* --- reading a line; each names the field in its message --- */

/* Borrowed text of a field. */
wn_status wn_task_text(wn_context *ctx, const struct wn_question *q, const json_t *line, const char *field,
                       const char **out);
/* A number from `first` on, also as a text ("1"), less `first`; below `count`. */
wn_status wn_task_number(wn_context *ctx, const struct wn_question *q, const json_t *line, const char *field, int first,
                         int count, int *out);
/* A list of 1 to WN_TASK_CHOICES texts. */
wn_status wn_task_list(wn_context *ctx, const struct wn_question *q, const json_t *line, const char *field,
                       const json_t **out);
/* One more request. The continuation is the delimiter and then `text`. */
wn_status wn_task_ask(wn_context *ctx, struct wn_question *q, const char *context, const char *delimiter,
                      const char *text);
/* The same for each text of a list. */
wn_status wn_task_ask_list(wn_context *ctx, struct wn_question *q, const char *context, const json_t *choices);
/* {"choices": {"text": [..], "label": [..]}, "answerKey"}, as in ARC, OpenBookQA and CommonsenseQA: the texts, and gold
 * by the label. */
wn_status wn_task_labelled(wn_context *ctx, struct wn_question *q, const json_t *line, const json_t **texts);
/* Text without white space at both ends, as Python's strip does for ASCII. */
void wn_task_strip(const char *text, const char **begin, size_t *bytes);
const struct wn_task_row *wn_task_row(const char *name); /* NULL: there is none */
void wn_question_clear(struct wn_question *q);           /* frees; may be filled again */

/* A text that is formatted, or memory that ran out. */
__attribute__((format(printf, 3, 4))) wn_status wn_task_format(wn_context *ctx, struct wn_text *out, const char *format,
                                                               ...);

#endif
