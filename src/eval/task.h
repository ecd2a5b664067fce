/* The internals of tasks. Each is a struct wn_task_row, a row of tasks.c. */
#ifndef WN_EVAL_TASK_H
#define WN_EVAL_TASK_H

#include <jansson.h>
#include "base/alloc.h"
#include "base/error.h"
#include "base/text.h"
#include "winnow/task.h"

enum { WN_TASK_CHOICES = 64 }; /* the most choices of a question */

/* A question: one or more requests, each a context and a continuation whose log probability is wanted. */
struct wn_question {
  const char *where; /* "FILE:LINE", for messages */
  int count;         /* requests */
  int gold;          /* the right request; -1: there is nothing to choose */
  struct wn_task_request {
    struct wn_text context, continuation;
    size_t bare; /* bytes of the delimiter, which precedes the choice in the continuation */
  } requests[WN_TASK_CHOICES];
};

enum { WN_TASK_FORMS = 3 };
struct wn_task_row {
  wn_task_info info;
  wn_status (*read)(wn_context *ctx, const json_t *line, struct wn_question *q); /* NULL: by the fields below */
  /* Texts in which {field} stands for a field of the line. Without choices these are the texts of the field `list`, or
   * without one, wn_task_labelled's. */
  const char *context, *choices[WN_TASK_FORMS], *list;
  const char *gold; /* the field with the number of the right choice, counted from `first` */
  int first;
};
const struct wn_task_row *wn_task_row(const char *name); /* NULL: there is none */
/* Turns a line of the task's file into requests. */
wn_status wn_task_read(wn_context *ctx, const struct wn_task_row *task, const json_t *line, struct wn_question *q);

/* --- reading a line; error messages name the field --- */

/* The text of a field, borrowed. */
wn_status wn_task_text(wn_context *ctx, const struct wn_question *q, const json_t *line, const char *field,
                       const char **out);
/* A number from `first` to first + count - 1, possibly as text ("1"); *out is the number minus `first`. */
wn_status wn_task_number(wn_context *ctx, const struct wn_question *q, const json_t *line, const char *field, int first,
                         int count, int *out);
/* A list of 1 to WN_TASK_CHOICES texts. */
wn_status wn_task_list(wn_context *ctx, const struct wn_question *q, const json_t *line, const char *field,
                       const json_t **out);
/* Adds a request. The continuation is the delimiter and then `text`. */
wn_status wn_task_ask(wn_context *ctx, struct wn_question *q, const char *context, const char *delimiter,
                      const char *text);
/* The same for each text of a list; NULL: none. */
wn_status wn_task_ask_list(wn_context *ctx, struct wn_question *q, const char *context, const char *delimiter,
                           const json_t *choices);
/* {"choices": {"text": [..], "label": [..]}, "answerKey"}, as in ARC, OpenBookQA and CommonsenseQA: gives the texts and
 * sets gold from the label. */
wn_status wn_task_labelled(wn_context *ctx, struct wn_question *q, const json_t *line, const json_t **texts);
/* Text without white space at both ends, as Python's strip does for ASCII. */
void wn_task_strip(const char *text, const char **begin, size_t *bytes);
void wn_question_clear(struct wn_question *q); /* frees its texts; it may be filled again */

/* Formats a text; WN_ERR_MEMORY if memory ran out. */
__attribute__((format(printf, 3, 4))) wn_status wn_task_format(wn_context *ctx, struct wn_text *out, const char *format,
                                                               ...);

#endif
