/* The files that a list of inputs names: a folder stands for its files of text. */
#ifndef WN_DATA_INPUTS_H
#define WN_DATA_INPUTS_H

#include <stdbool.h>
#include <stddef.h>
#include "winnow/context.h"

struct wn_inputs {
  char **paths; /* [count], each wn_strdup'd */
  size_t count, capacity;
};
/* Folders, with those below them, give their files in the order of their paths' bytes. Names that begin with a dot are
 * passed over; another file that is named as neither text nor JSON lines is refused, so that nothing is left out
 * unseen. */
wn_status wn_inputs_list(wn_context *ctx, const char *const *names, int count, struct wn_inputs *out);
/* The files whose names fit a path with * in its last part, sorted; the path itself where there is no *, or a file of
 * this very name. */
wn_status wn_inputs_match(wn_context *ctx, const char *path, struct wn_inputs *out);
void wn_inputs_clear(struct wn_inputs *inputs);
/* By its name: ".jsonl", which may be packed. */
bool wn_input_is_jsonl(const char *path);

#endif
