/* The "data" object of a recipe: its table and its checks. */
#ifndef WN_DATA_CONFIG_H
#define WN_DATA_CONFIG_H

#include "base/fields.h"
#include "winnow/data.h"

extern const struct wn_field wn_data_fields[]; /* fields of wn_data_config */
extern const int wn_data_field_count;
void wn_data_config_init(wn_data_config *config); /* the defaults */
/* Checks that involve several keys. `where` is the file's name in errors. */
wn_status wn_data_config_check(wn_context *ctx, const char *where, const wn_data_config *config);

#endif
