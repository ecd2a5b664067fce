/* For test programs: a context and a folder that are made before the tests and removed after them. */
#ifndef WN_TEST_FOLDER_H
#define WN_TEST_FOLDER_H

#include "support.h"

static wn_context *ctx;
static char folder[512];

static int set_up(void **state) {
  (void)state;
  ctx = make_context();
  make_folder(folder);
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  remove_folder(folder);
  wn_context_destroy(ctx);
  return 0;
}

#endif
