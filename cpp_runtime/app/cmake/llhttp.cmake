# llhttp, the parser of HTTP that Node.js has: generated C, without any dependency.
set(EDGEPACK_LLHTTP "" CACHE PATH "folder of llhttp's sources, from edgepack.native.llhttp")
if(NOT EXISTS "${EDGEPACK_LLHTTP}/llhttp/llhttp.c")
  message(FATAL_ERROR "EDGEPACK_LLHTTP: no sources in '${EDGEPACK_LLHTTP}'; "
    "edgepack.native.llhttp.fetch_llhttp() brings them")
endif()
add_library(llhttp STATIC
  "${EDGEPACK_LLHTTP}/llhttp/api.c"
  "${EDGEPACK_LLHTTP}/llhttp/http.c"
  "${EDGEPACK_LLHTTP}/llhttp/llhttp.c")
target_include_directories(llhttp SYSTEM PUBLIC "${EDGEPACK_LLHTTP}")
target_compile_options(llhttp PRIVATE -w $<IF:$<BOOL:${EDGEPACK_SANITIZE}>,-O1,-Os>
  "-ffile-prefix-map=${EDGEPACK_LLHTTP}=third-party")
target_link_libraries(llhttp PRIVATE edgepack_options)
