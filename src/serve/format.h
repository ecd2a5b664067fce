/* What the answer of a request must be: its response_format, or a call. Private to src/serve. */
#ifndef WN_SERVE_FORMAT_H
#define WN_SERVE_FORMAT_H

#include "serve/request.h"

/* Reads response_format as in the OpenAI API. *out: the constraint on the answer; it stays as it was if any text is
 * allowed. False: `error` says why. */
bool wn_serve_format(const struct wn_serve_model *m, const json_t *value, wn_constraint **out,
                     struct wn_serve_error *error);

/* Does tool_choice ask for a call: "required", or a function's name? */
bool wn_serve_calls_must(const json_t *body);
/* The constraint on an answer that is one call of the body's tools, which have been checked. */
bool wn_serve_calls_format(const struct wn_serve_model *m, const json_t *body, const struct wn_call_form *form,
                           wn_constraint **out, struct wn_serve_error *error);

#endif
