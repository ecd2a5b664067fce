# Embeds a web page as one file, with its Content-Security-Policy, as the C arrays NAME and NAME_policy:
#   cmake -DFOLDER=... -DOUTPUT=... -DNAME=... -P embed_page.cmake
# @STYLE@ and @SCRIPT@ in FOLDER/page.html are replaced by page.css and page.js. The policy allows only these two, by
# their SHA-256, and requests to the page's own server.
set(digits "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")

function(base64 hex out) # of 32 bytes
  set(text "")
  foreach(i RANGE 0 60 6)
    string(SUBSTRING "${hex}0000" ${i} 6 three)
    foreach(shift 18 12 6 0)
      math(EXPR at "(0x${three} >> ${shift}) & 63")
      string(SUBSTRING "${digits}" ${at} 1 digit)
      string(APPEND text "${digit}")
    endforeach()
  endforeach()
  string(SUBSTRING "${text}" 0 43 text)
  set(${out} "${text}=" PARENT_SCOPE)
endfunction()

file(READ "${FOLDER}/page.html" page)
foreach(part "STYLE;page.css" "SCRIPT;page.js")
  list(GET part 0 mark)
  list(GET part 1 file)
  file(READ "${FOLDER}/${file}" text)
  string(SHA256 hex "${text}")
  base64("${hex}" ${mark})
  string(REPLACE "@${mark}@" "${text}" page "${page}")
endforeach()
set(policy "default-src 'none'; script-src 'sha256-${SCRIPT}'; style-src 'sha256-${STYLE}'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
file(WRITE "${OUTPUT}.html" "${page}")
file(READ "${OUTPUT}.html" hex HEX)
string(REGEX REPLACE "(..)" "0x\\1," bytes "${hex}")
string(REGEX REPLACE "(0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,)" "\\1\n" bytes "${bytes}")
file(WRITE "${OUTPUT}" "extern const char ${NAME}[], ${NAME}_policy[];\nconst char ${NAME}[] = {\n${bytes}0};\nconst char ${NAME}_policy[] = \"${policy}\";\n")
