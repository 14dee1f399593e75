# Run by cmake --install: writes the units with the paths of this installation.
set(BIN_DIR ${CMAKE_INSTALL_PREFIX}/${ELIXIR_BIN_DIR})
set(DOC_DIR ${CMAKE_INSTALL_PREFIX}/${ELIXIR_DOC_DIR})
set(CONFIG_FILE ${CMAKE_INSTALL_PREFIX}/${ELIXIR_CONFIG_DIR}/elixird.toml)

function(install_unit source destination)
  set(path ${CMAKE_INSTALL_PREFIX}/lib/systemd/${destination})
  message(STATUS "Installing: $ENV{DESTDIR}${path}")
  configure_file(${ELIXIR_UNIT_SOURCES}/${source} $ENV{DESTDIR}${path} @ONLY)
  list(APPEND CMAKE_INSTALL_MANIFEST_FILES ${path})
  set(CMAKE_INSTALL_MANIFEST_FILES ${CMAKE_INSTALL_MANIFEST_FILES} PARENT_SCOPE)
endfunction()

# For root's trainers, as in containers and on machines given to one job: found by them as it is.
set(SERVICE_FOR "root")
set(SERVICE_USER root)
set(RUNTIME_NAME elixir)
set(RUNTIME_DIR /run/elixir)
install_unit(elixird.service.in system/elixird.service)

# For a user by name: systemctl enable --now elixird@alice
set(SERVICE_FOR "user %i")
set(SERVICE_USER %i)
set(RUNTIME_NAME elixir-%i)
set(RUNTIME_DIR /run/elixir-%i)
install_unit(elixird.service.in system/elixird@.service)

install_unit(elixird.user.service.in user/elixird.service)
