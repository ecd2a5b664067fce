/* The keywords of numbers and strings. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/number.h"
#include "text/schema_read.h"

wn_status wn_schema_count(struct wn_schema_builder *b, const json_t *json, const struct wn_schema_place *at,
                          const char *keyword, int64_t *out) {
  const struct wn_schema_place under = wn_schema_under(at, keyword, 0);
  const double count = json_number_value(json);
  if (!json) return WN_OK;
  if (!json_is_number(json) || count < 0 || count != floor(count))
    return wn_schema_refuse(b, WN_ERR_FORMAT, &under, "expected a whole number of at least 0");
  *out = count < (double)INT32_MAX ? (int64_t)count : INT32_MAX;
  return WN_OK;
}

/* --- numbers --- */

#define DECIMALS INT64_C(999999999999999) /* the most that WN_SCHEMA_FRACTION digits can say */

struct decimal {
  struct wn_schema_builder *b;
  const struct wn_schema_place *at;
  double unit; /* 10^scale */
};

/* The least value x unit that a lower bound allows. With sign -1: for an upper bound, both negated. */
static wn_status decimal_bound(const struct decimal *d, const json_t *json, const char *keyword, int sign,
                               int64_t *least) {
  const struct wn_schema_place under = wn_schema_under(d->at, keyword, 0);
  const bool beyond = keyword[0] == 'e'; /* in exclusiveMinimum and exclusiveMaximum */
  int64_t bound;
  if (!json) return WN_OK;
  if (!json_is_number(json)) return wn_schema_refuse(d->b, WN_ERR_FORMAT, &under, "expected a number");
  const double value = sign * json_number_value(json), up = ceil(value);
  if (d->unit > 1 && fabs(value) * d->unit >= 1e15) {
    bound = value > 0 ? DECIMALS + 1 : -DECIMALS;
  } else if (d->unit > 1) { /* decimals of 15 digits are doubles of their own */
    bound = (int64_t)floor(value * d->unit) - 1;
    while ((double)bound / d->unit < value || (beyond && (double)bound / d->unit == value)) bound++;
  } else if (json_is_integer(json) && fabs(value) < 1e18) {
    bound = sign * json_integer_value(json) + beyond;
  } else { /* from 2^53 on, adding 1 to a double may not change it */
    bound = up >= 1e18 ? WN_SCHEMA_DIGITS + 1 : up <= -1e18 ? -WN_SCHEMA_DIGITS : (int64_t)up + (beyond && value == up);
  }
  if (bound > *least) *least = bound;
  return WN_OK;
}

/* multipleOf as digits / 10^places. */
static wn_status decimal_multiple(const struct decimal *d, const json_t *json, int64_t *digits, int *places) {
  const struct wn_schema_place under = wn_schema_under(d->at, "multipleOf", 0);
  const double value = json_number_value(json);
  double unit = 1;
  *digits = 1;
  *places = 0;
  if (!json) return WN_OK;
  if (!json_is_number(json) || !(value > 0))
    return wn_schema_refuse(d->b, WN_ERR_FORMAT, &under, "expected a number above 0");
  while (*places < WN_SCHEMA_FRACTION && round(value * unit) / unit != value) unit *= 10, ++*places;
  if (value * unit >= 1e15 || round(value * unit) / unit != value)
    return wn_schema_refuse(d->b, WN_ERR_UNSUPPORTED, &under, "more than %d digits are not served", WN_SCHEMA_FRACTION);
  *digits = (int64_t)round(value * unit);
  return WN_OK;
}

/* Digits after the point: as many as bounds and multipleOf leave room for. */
static int decimal_scale(const struct wn_schema_keywords *k, int places) {
  const json_t *const bounds[] = {k->minimum, k->above, k->maximum, k->below};
  const bool open = (!k->minimum && !k->above) || (!k->maximum && !k->below);
  int whole = open ? 9 : 1;
  if (k->multiple) return places;
  for (int i = 0; i < 4; i++)
    while (whole < WN_SCHEMA_FRACTION && fabs(json_number_value(bounds[i])) >= pow(10, whole)) whole++;
  return WN_SCHEMA_FRACTION - whole;
}

static int64_t decimal_common(int64_t a, int64_t b) {
  while (b) {
    const int64_t rest = a % b;
    a = b, b = rest;
  }
  return a;
}

wn_status wn_schema_number(struct wn_schema_builder *b, const struct wn_schema_keywords *k, bool integer,
                           uint32_t value, const struct wn_schema_place *at) {
  struct decimal d = {b, at, 1};
  struct wn_shape shape = {.kind = WN_SHAPE_DECIMAL};
  int places;
  if (!integer && !k->minimum && !k->above && !k->maximum && !k->below && !k->multiple)
    return wn_schema_add_shape(b, value, &(struct wn_shape){.kind = WN_SHAPE_NUMBER});
  WN_TRY(decimal_multiple(&d, k->multiple, &shape.step, &places));
  shape.scale = integer ? 0 : decimal_scale(k, places);
  for (int i = 0; i < shape.scale; i++) d.unit *= 10;
  if (integer) /* the integers among the multiples of n / 10^places */
    shape.step /= decimal_common(shape.step, (int64_t)pow(10, places));
  else if (!k->multiple)
    shape.step = 1;
  const int64_t widest = shape.scale ? DECIMALS : WN_SCHEMA_DIGITS;
  int64_t low = -widest, high = -widest;
  WN_TRY(decimal_bound(&d, k->minimum, "minimum", 1, &low));
  WN_TRY(decimal_bound(&d, k->above, "exclusiveMinimum", 1, &low));
  WN_TRY(decimal_bound(&d, k->maximum, "maximum", -1, &high));
  WN_TRY(decimal_bound(&d, k->below, "exclusiveMaximum", -1, &high));
  high = -high;
  if (shape.step > 1) { /* to multiples, so that there is one if low <= high */
    low += (shape.step - low % shape.step) % shape.step;
    high -= (high % shape.step + shape.step) % shape.step;
  }
  if (low > WN_SCHEMA_DIGITS) low = WN_SCHEMA_DIGITS, high = -low;
  shape.min = low, shape.max = high;
  return wn_schema_add_shape(b, value, &shape);
}

/* --- strings --- */

#define YEAR "(?:[1-9]\\d{3}|0[1-9]\\d\\d|00[1-9]\\d|000[1-9])"
#define LEAP_YEAR "(?:\\d\\d(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
#define DATE                                                                                                           \
  "(?:" YEAR "-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|"                    \
  "02-(?:0[1-9]|1\\d|2[0-8]))|" LEAP_YEAR "-02-29)"
#define MINUTES "(?:[01]\\d|2[0-3]):[0-5]\\d"
#define TIME MINUTES ":[0-5]\\d(?:\\.\\d{1,6})?(?:Z|[+-]" MINUTES ")"
#define HEX(n) "[0-9A-Fa-f]{" #n "}"
#define LABEL "[0-9A-Za-z](?:[0-9A-Za-z-]*[0-9A-Za-z])?"
#define SHORT_LABEL "[0-9A-Za-z](?:[0-9A-Za-z-]{0,60}[0-9A-Za-z])?"
#define WORD "[0-9A-Za-z!#$%&'*+/=?^_`{|}~-]+"
#define OCTET "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define PLAIN "0-9A-Za-z._~!$&'()*+,;=:-" /* of a URI */
#define CODED "%[0-9A-Fa-f]{2}"

/* Formats as regular expressions; a value may have less than RFC 3339, 4122, 5321, 2673, 1123 and 3986 allow, not more,
 * but for the lengths of e-mail addresses. */
static const struct format {
  const char *name, *pattern;
} formats[] = {
    {"date", "^" DATE "$"},
    {"time", "^" TIME "$"},
    {"date-time", "^" DATE "T" TIME "$"},
    {"uuid", "^" HEX(8) "-" HEX(4) "-" HEX(4) "-" HEX(4) "-" HEX(12) "$"},
    {"email", "^" WORD "(?:\\." WORD ")*@" LABEL "(?:\\." LABEL ")+$"},
    {"ipv4", "^" OCTET "(?:\\." OCTET "){3}$"},
    {"hostname", "^" SHORT_LABEL "(?:\\." SHORT_LABEL "){0,3}$"},
    {"uri", "^[A-Za-z][0-9A-Za-z+.-]*:(?://(?:(?:[0-9A-Za-z._~!$&'()*+,;=:-]|" CODED ")*@)?(?:[0-9A-Za-z._~-]|" CODED
            ")*(?::\\d*)?(?:/(?:[@" PLAIN "]|" CODED ")*)*|/?(?:(?:[@" PLAIN "]|" CODED ")+(?:/(?:[@" PLAIN "]|" CODED
            ")*)*)?)(?:\\?(?:[@/?" PLAIN "]|" CODED ")*)?(?:#(?:[@/?" PLAIN "]|" CODED ")*)?$"},
};

/* Adds what a pattern or a format, or a list of them that was merged, says. */
static wn_status schema_patterns(struct wn_schema_builder *b, const json_t *json, const struct wn_schema_place *at,
                                 const char *keyword, bool made, const char **patterns, int *count) {
  const struct wn_schema_place under = wn_schema_under(at, keyword, 0);
  const bool list = made && json_is_array(json);
  for (size_t i = 0; json && i < (list ? json_array_size(json) : 1); i++) {
    const char *text = json_string_value(list ? json_array_get(json, i) : json);
    if (!text) return wn_schema_refuse(b, WN_ERR_FORMAT, &under, "expected a text");
    if (*count == WN_REGULAR_PATTERNS)
      return wn_schema_refuse(b, WN_ERR_UNSUPPORTED, &under, "more than %d together are not served",
                              WN_REGULAR_PATTERNS);
    if (keyword[0] == 'f') {
      const struct format *f = formats, *end = formats + sizeof formats / sizeof *formats;
      char shown[68];
      while (f < end && strcmp(f->name, text) != 0) f++;
      wn_line_escape(text, shown, sizeof shown);
      if (f == end) return wn_schema_refuse(b, WN_ERR_UNSUPPORTED, &under, "\"%s\" is not served", shown);
      text = f->pattern;
    }
    patterns[(*count)++] = text;
  }
  return WN_OK;
}

wn_status wn_schema_string(struct wn_schema_builder *b, const struct wn_schema_keywords *k, uint32_t value,
                           const struct wn_schema_place *at) {
  struct wn_shape shape = {.kind = WN_SHAPE_STRING, .max = INT64_MAX};
  const struct wn_schema_place under = wn_schema_under(at, k->pattern ? "pattern" : "format", 0);
  const char *patterns[WN_REGULAR_PATTERNS];
  int count = 0;
  uint32_t regular;
  WN_TRY(wn_schema_count(b, k->min_length, at, "minLength", &shape.min));
  WN_TRY(wn_schema_count(b, k->max_length, at, "maxLength", &shape.max));
  WN_TRY(schema_patterns(b, k->pattern, at, "pattern", k->made, patterns, &count));
  WN_TRY(schema_patterns(b, k->format, at, "format", k->made, patterns, &count));
  if (count > 0 && shape.min <= shape.max) {
    struct wn_regular *made;
    char line[400];
    const wn_status status = wn_regular_create(b->ctx, patterns, count, shape.min, shape.max, &b->steps, &made);
    wn_print(line, sizeof line, "%s", status == WN_OK ? "" : wn_context_error(b->ctx));
    if (status != WN_OK) return wn_schema_refuse(b, status, &under, "%s", line);
    if (wn_schema_add(b, &b->regulars, 1, &regular) != WN_OK) {
      wn_free(made);
      return WN_ERR_UNSUPPORTED;
    }
    ((struct wn_regular **)b->regulars.data)[regular] = made;
    shape.regular = (int32_t)regular + 1;
  }
  return wn_schema_add_shape(b, value, &shape);
}
