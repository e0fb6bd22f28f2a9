# Writes build/generated/steptwin_version.h at build time (rewritten only when git's answer changes).
set(STEPTWIN_VERSION_HEADER ${CMAKE_BINARY_DIR}/generated/steptwin_version.h)
add_custom_target(steptwin_version
  COMMAND ${CMAKE_COMMAND} -DOUT=${STEPTWIN_VERSION_HEADER} -DSRC=${CMAKE_SOURCE_DIR} -DVERSION=${PROJECT_VERSION}
          -DBUILD_TYPE=${CMAKE_BUILD_TYPE} -P ${CMAKE_SOURCE_DIR}/cmake/write_version.cmake
  BYPRODUCTS ${STEPTWIN_VERSION_HEADER} COMMENT "")
add_dependencies(st_cli steptwin_version)
target_include_directories(st_cli PUBLIC ${CMAKE_BINARY_DIR}/generated)
