/* Replaces sentencepiece.cc in a build without SentencePiece. */
#include "text/spm.h"

#include <stdio.h>

static void spm_none(struct wn_spm_error *error) {
  snprintf(error->text, sizeof error->text, "this build is without SentencePiece (WINNOW_SENTENCEPIECE=OFF)");
}

struct wn_spm_encoder *wn_spm_encoder_create(const void *model, size_t bytes, struct wn_spm_error *error) {
  (void)model, (void)bytes;
  error->text[0] = 0; /* no error */
  return NULL;
}
void wn_spm_encoder_destroy(struct wn_spm_encoder *spm) {
  (void)spm;
}

struct wn_spm_ids *wn_spm_ids_create(void) {
  return NULL;
}
void wn_spm_ids_destroy(struct wn_spm_ids *ids) {
  (void)ids;
}
const int32_t *wn_spm_ids_data(const struct wn_spm_ids *ids) {
  (void)ids;
  return NULL;
}
size_t wn_spm_ids_count(const struct wn_spm_ids *ids) {
  (void)ids;
  return 0;
}
bool wn_spm_encode(const struct wn_spm_encoder *spm, const char *text, size_t bytes, struct wn_spm_ids *ids,
                   struct wn_spm_error *error) {
  (void)spm, (void)text, (void)bytes, (void)ids;
  spm_none(error);
  return false;
}

bool wn_spm_train(const struct wn_spm_training *training, char **model, size_t *bytes, struct wn_spm_error *error) {
  (void)training;
  *model = NULL;
  *bytes = 0;
  spm_none(error);
  return false;
}
void wn_spm_text_free(char *text) {
  (void)text;
}
