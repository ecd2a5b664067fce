/* Calls of functions in an answer, in the form in which the model writes them. Private to src/serve. */
#ifndef WN_SERVE_CALLS_H
#define WN_SERVE_CALLS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "winnow/context.h"

/* How a model writes calls. */
struct wn_call_form {
  const char *found;     /* in the chat template's text; NULL: any */
  const char *open;      /* before a call; NULL: nothing */
  const char *close;     /* after it; NULL: nothing */
  const char *begun;     /* what precedes the JSON of a call that must come; NULL: calls cannot be asked for */
  const char *arguments; /* the name of a call's arguments */
  bool list;             /* calls stand in a list */
};
const struct wn_call_form *wn_call_form_of(const char *template); /* of a chat template's text */

/* Splits an answer that comes in pieces into text and calls; how it is cut changes nothing. */
struct wn_calls;
/* tools: the request's functions, borrowed. ids of calls depend on `seed` and on the calls. `forced`: the prompt ends
 * with form->begun. text_begun: the answer continues a text. NULL: out of memory. */
struct wn_calls *wn_calls_create(const struct wn_call_form *form, const json_t *tools, uint64_t seed, bool forced,
                                 bool text_begun);
void wn_calls_destroy(struct wn_calls *calls);                              /* NULL is allowed */
bool wn_calls_push(struct wn_calls *calls, const char *text, size_t bytes); /* false: out of memory */
/* What is certain by now, in the order of the answer: text, or a call {"id", "type", "function"}, borrowed until the
 * next call of any of these functions. `end`: no more text comes. False: there is nothing (more). */
struct wn_call_event {
  const char *text; /* [bytes] */
  size_t bytes;
  json_t *call; /* NULL: text */
  size_t index; /* of the call */
};
bool wn_calls_next(struct wn_calls *calls, bool end, struct wn_call_event *out);
bool wn_calls_failed(const struct wn_calls *calls); /* memory ran out */

#endif
