/* The response_format of a request. Private to src/serve. */
#ifndef WN_SERVE_FORMAT_H
#define WN_SERVE_FORMAT_H

#include "serve/request.h"

/* Reads response_format as in the OpenAI API. *out: the constraint on the answer; it stays as it was if any text is
 * allowed. False: `error` says why. */
bool wn_serve_format(const struct wn_serve_model *m, const json_t *value, wn_constraint **out,
                     struct wn_serve_error *error);

#endif
