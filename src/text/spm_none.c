/* Replaces sentencepiece.cc in a build without SentencePiece. */
#include "text/spm.h"

#include <stdio.h>

bool wn_spm_train(const struct wn_spm_training *training, char **model, size_t *bytes, struct wn_spm_error *error) {
  (void)training;
  *model = NULL;
  *bytes = 0;
  snprintf(error->text, sizeof error->text, "this build is without SentencePiece (WINNOW_SENTENCEPIECE=OFF)");
  return false;
}
void wn_spm_text_free(char *text) {
  (void)text;
}
