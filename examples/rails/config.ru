# frozen_string_literal: true

# The web server: puma. The sidecar, which runs the jobs, is another process: jobqueue-sidecar.
require_relative "config/environment"
run Rails.application
