# frozen_string_literal: true

# The name that Bundler requires.
require "jobqueue/sidecar"
