/* The form of an answer that a request asks for. Private to src/serve. */
#ifndef WN_SERVE_FORMAT_H
#define WN_SERVE_FORMAT_H

#include "serve/request.h"

/* response_format as the OpenAI API has it. *out: what the answer is held to, as it was where it is any text. False:
 * `error` says why. */
bool wn_serve_format(const struct wn_serve_model *m, const json_t *value, wn_constraint **out,
                     struct wn_serve_error *error);

#endif
