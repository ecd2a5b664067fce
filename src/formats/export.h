/* Models in other programs' formats: private to src/formats. export_plan.c says what a format can express and writes
 * its configuration; export.c makes the tensors. */
#ifndef WN_FORMATS_EXPORT_H
#define WN_FORMATS_EXPORT_H

#include <jansson.h>
#include "formats/import.h"
#include "winnow/convert.h"

struct wn_export {
  wn_context *ctx;
  const struct wn_import *from;
  wn_convert_options options;
  enum wn_model_form form;        /* of the family */
  const struct wn_family *family; /* NULL: our own */
  const char *architecture;
  wn_model_config config; /* as the target has it */
  const struct wn_names *names;
  int64_t bos, eos; /* for a target's configuration, -1: none */
  bool in_hf;       /* GGUF: what cannot be expressed there can in a folder of transformers */
};

/* Architecture, configuration and naming of the target; WN_ERR_UNSUPPORTED names what it cannot express. */
wn_status wn_export_plan(wn_context *ctx, const struct wn_import *from, const wn_convert_options *options,
                         struct wn_export *out);
/* The family of folders that bring their code along (families/winnow.c). */
const struct wn_family *wn_export_own_family(void);
/* config.json of transformers; type: "float32", ... New reference. */
wn_status wn_export_hf_config(wn_context *ctx, const struct wn_export *e, const char *type, json_t **out);
/* The architecture's keys in GGUF. */
wn_status wn_export_gguf_values(wn_context *ctx, const struct wn_export *e, wn_gguf_values *values);

#endif
