# libmosquitto, the client library alone: without threads, TLS, SOCKS and DNS SRV.
set(_mosquitto "${EDGEPACK_THIRD_PARTY}/mosquitto")
file(GLOB _sources "${_mosquitto}/lib/*.c")
# Its memory is bounded by ours.
list(REMOVE_ITEM _sources "${_mosquitto}/lib/memory_mosq.c")
add_library(mosquitto STATIC ${_sources} src/mosquitto_memory.c)
target_include_directories(mosquitto SYSTEM
  PUBLIC "${_mosquitto}/include"
  PRIVATE "${_mosquitto}" "${_mosquitto}/lib" "${_mosquitto}/deps")
target_compile_definitions(mosquitto PRIVATE _GNU_SOURCE VERSION="2.0.21")
target_compile_options(mosquitto PRIVATE -w)
target_link_libraries(mosquitto PRIVATE edgepack_options)
